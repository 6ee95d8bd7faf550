"""An engine that tells of what it gives: for clients who carry a program out themselves, and want its calls."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from ramet.lang.backends.token_engine import Limits, TokenEngine, TokenIncrement, TokenScore, TokenStream
from ramet.runtime.protocol import ProgramTag, RametError, SamplingParams, programs, wire
from ramet.runtime.tokenizer import Tokenizer

T = TypeVar("T")
Told = programs.CallDelta | programs.CallScores | programs.CallFailed
Tell = Callable[[Told], None]


class TellingEngine:
    """A TokenEngine that tells of everything that another one gives. On one event loop only."""

    def __init__(self, engine: TokenEngine, tell: Tell, variables: "dict[tuple[str, int], str]") -> None:
        """``variables``: a call's branch and step -> the variable that it makes; it may still grow."""
        self._engine = engine
        self._tell_one = tell
        self._variables = variables
        self._numbers: dict[str, int] = {}
        self._told: defaultdict[str, list[Told]] = defaultdict(list)
        """What was told of each variable whose call may answer others."""
        self._others: defaultdict[str, list[str]] = defaultdict(list)
        """The variables of the calls that it answers."""

    def share(self, made: ProgramTag, answered: ProgramTag) -> None:
        """A second call is answered by one that is made: all that is told of this is told of it too."""
        variable, other = (
            self._variables[made.branch, made.step],
            self._variables[answered.branch, answered.step],
        )
        self._others[variable].append(other)
        for event in self._told[variable]:
            self._tell_one(msgspec.structs.replace(event, variable=other))

    @property
    def info(self) -> Limits:
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> TokenStream:
        variable, number = self._call(tag)
        try:
            stream = self._engine.astream(
                prompts, sampling_params, tag=tag, priority=priority, cache_salt=cache_salt
            )
        except RametError as error:
            self._tell(programs.CallFailed(variable=variable, number=number, error=wire.error_detail(error)))
            raise
        return _ToldStream(stream, self._tell, (variable, number))

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> object:
        return await self._engine.agenerate(prompts, sampling_params, cache_salt=cache_salt)

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> Sequence[TokenScore]:
        variable, number = self._call(tag)
        try:
            scores = await self._engine.ascore(
                prompt, continuations, tag=tag, priority=priority, cache_salt=cache_salt
            )
        except RametError as error:
            self._tell(programs.CallFailed(variable=variable, number=number, error=wire.error_detail(error)))
            raise
        told = [
            wire.ContinuationScore(
                token_ids=list(token_ids),
                token_logprobs=[wire.to_finite(value) for value in score.token_logprobs],
                num_cached_tokens=score.num_cached_tokens,
            )
            for token_ids, score in zip(continuations, scores, strict=True)
        ]
        self._tell(programs.CallScores(variable=variable, number=number, scores=told))
        return scores

    def flush_cache(self) -> int:
        return self._engine.flush_cache()

    def stats(self) -> object:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()

    def _tell(self, event: Told) -> None:
        told = self._told[event.variable]
        told.append(event)
        if isinstance(event, programs.CallDelta) and event.event.finish_reason is not None:
            self._told[event.variable] = _as_one(told, event)
        for variable in (event.variable, *self._others[event.variable]):
            self._tell_one(msgspec.structs.replace(event, variable=variable))

    def _call(self, tag: ProgramTag) -> tuple[str, int]:
        variable = self._variables[tag.branch, tag.step]
        number = self._numbers.get(variable, 0)
        self._numbers[variable] = number + 1
        return variable, number


class _ToldStream:
    """A TokenStream that tells of each increment, and of how it failed."""

    def __init__(self, stream: TokenStream, tell: Tell, call: tuple[str, int]) -> None:
        self._stream = stream
        self._tell = tell
        self._call = call

    async def __aenter__(self) -> Self:
        try:
            await self._stream.__aenter__()
        except RametError as error:
            self._tell_failure(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TokenIncrement]:
        variable, number = self._call
        try:
            async for one in self._stream:
                event = wire.GenerateEvent(
                    index=one.index,
                    text=one.text,
                    token_ids=one.token_ids,
                    logprobs=wire.finite_logprobs(one.logprobs),
                    prompt_logprobs=wire.finite_logprobs(one.prompt_logprobs),
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                    stats=one.stats,
                )
                self._tell(programs.CallDelta(variable=variable, number=number, event=event))
                yield one
        except RametError as error:
            self._tell_failure(error)
            raise

    def _tell_failure(self, error: RametError) -> None:
        variable, number = self._call
        self._tell(programs.CallFailed(variable=variable, number=number, error=wire.error_detail(error)))


def _as_one(told: list[Told], last: programs.CallDelta) -> list[Told]:
    """The same with one increment in place of those of the answer that has ended."""
    parts: list[wire.GenerateEvent] = []
    rest: list[Told] = []
    for event in told:
        if (
            isinstance(event, programs.CallDelta)
            and event.number == last.number
            and event.event.index == last.event.index
        ):
            parts.append(event.event)
        else:
            rest.append(event)
    whole = msgspec.structs.replace(
        last.event,
        text="".join(part.text for part in parts),
        token_ids=[one for part in parts for one in part.token_ids],
        logprobs=_concatenated([part.logprobs for part in parts]),
        prompt_logprobs=_concatenated([part.prompt_logprobs for part in parts]),
    )
    return [*rest, msgspec.structs.replace(last, event=whole)]


def _concatenated(parts: list[list[T] | None]) -> list[T] | None:
    given = [part for part in parts if part is not None]
    return [one for part in given for one in part] if given else None
