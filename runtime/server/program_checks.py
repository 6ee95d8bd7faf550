"""What of a program's calls can be known to be wrong before the first of them runs."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from ramet.runtime.engine import EngineFace, EngineInfo
from ramet.runtime.engine.prompts import check_params
from ramet.runtime.grammar.compiler import canonical_key
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    PromptTooLongError,
    RametError,
    SamplingParams,
    programs,
)
from ramet.runtime.server.gateway import Gateway
from ramet.runtime.server.program_engine import GatewayEngine
from ramet.runtime.server.tenants import Tenant

MAX_AHEAD = 32
"""Constraints of one program that are tried before it begins; those behind them are tried by their calls."""
AHEAD_SECONDS = 2.0
"""For which a program waits for that. What is not compiled by then goes on being compiled meanwhile."""
MAX_KNOWN = 1024
"""Constraints that are remembered to be good."""


def check_calls(program: programs.WireProgram, info: EngineInfo) -> None:
    """Sampling parameters of all calls against the model.

    Raises:
        InvalidRequestError: names the operation and the parameter.
    """
    for where, gen in _gens(program):
        try:
            check_params(gen.params, info)
            limit = gen.params.max_tokens
            if limit is not None and limit >= info.context_length:
                raise PromptTooLongError(
                    f"max_tokens is {limit}, and the context of {info.context_length} tokens has to hold the "
                    "prompt as well; lower it, or pass null for as many as fit",
                    field="max_tokens",
                )
        except InvalidRequestError as error:
            raise _at(where, error) from None


class ConstraintsAhead:
    """Tries the constraints of a program as its calls would, each with a request of one token whose answer is
    dropped: so they are compiled by the time their calls come, and what the engine refuses is known before.

    Lives on one event loop. Changes with ``check`` alone: what was good is remembered, up to MAX_KNOWN.
    """

    def __init__(self, engine: EngineFace, gateway: Gateway, *, seconds: float = AHEAD_SECONDS) -> None:
        self._engine = engine
        self._gateway = gateway
        self._seconds = seconds
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, program: programs.WireProgram, tenant: Tenant) -> None:
        """Takes ``seconds`` at most.

        Raises:
            InvalidRequestError: a constraint cannot be enforced; names the operation.
        """
        wanted = self._unknown(program)
        tasks = {
            asyncio.create_task(self._try(key, spec, tenant)): where for key, (where, spec) in wanted.items()
        }
        if not tasks:
            return
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task, where in tasks.items():
            error = task.exception() if task in done else None
            if isinstance(error, InvalidRequestError):
                # Those that have no field are the constraint's as well: the request has nothing else.
                raise _at(where, error, "grammar")
            if error is not None:
                raise error

    def _unknown(self, program: programs.WireProgram) -> dict[bytes, tuple[str, GrammarSpec]]:
        unknown: dict[bytes, tuple[str, GrammarSpec]] = {}
        for where, gen in _gens(program):
            spec = gen.params.grammar
            if spec is None or len(unknown) == MAX_AHEAD:
                continue
            key = canonical_key(spec)
            if key in self._known:
                self._known.move_to_end(key)
            else:
                unknown.setdefault(key, (where, spec))
        return unknown

    async def _try(self, key: bytes, spec: GrammarSpec, tenant: Tenant) -> None:
        engine = GatewayEngine(self._engine, self._gateway, tenant)
        prompt = engine.tokenizer.encode("\n", add_bos=True)
        try:
            await engine.agenerate([prompt], SamplingParams(max_tokens=1, grammar=spec), cache_salt="")
        except InvalidRequestError:
            raise
        except RametError:
            # No mistake of the program's: the call itself will tell, should it fail again.
            return
        self._known[key] = None
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _gens(program: programs.WireProgram) -> Iterator[tuple[str, programs.Gen]]:
    for index, branch in enumerate(program.branches):
        for position, operation in enumerate(branch.operations):
            if isinstance(operation, programs.Gen):
                yield f"program.branches[{index}].operations[{position}].params", operation


def _at(where: str, error: InvalidRequestError, field: str | None = None) -> InvalidRequestError:
    """The same error with the operation's place."""
    field = field or error.field
    return type(error)(f"{where}: {error}", field=f"{where}.{field}" if field else where)
