"""Pass: what all programs of a batch begin with is computed once, before their first calls.

The first two programs of the batch to arrive show what they share; the backend computes it, and all that arrive
meanwhile wait for that. Nobody waits for a second program longer than PATIENCE. Backends that have nothing of
it, since they share what calls begin with while they run, are not asked (``Capabilities.hoists``).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from ramet.lang.backends.base import Backend, Prompt, ToolOffer, ToolPrompt, ToolSpec
from ramet.lang.compiler.piece import Fixed, Piece, first_tools, fixed_start, marked_text
from ramet.lang.operations import AppendImage, AppendText, AwaitPrefix, BeginRole, EndRole

logger = logging.getLogger(__name__)

MIN_PREFIX = 256
"""Characters. Less than this costs no more than the call that would compute it."""
PATIENCE = 0.02
"""Seconds."""


class HoistPrefix:
    """The pass for one program of a batch: what it begins with waits at the batch's gate."""

    def __init__(self, gate: "PrefixGate") -> None:
        self._gate = gate
        self._done = False

    def __call__(self, piece: Piece) -> Piece:
        if self._done or not piece.tracks:
            return piece
        self._done = True
        first, *others = piece.tracks
        tools = first_tools(piece, first.branch)
        awaits = AwaitPrefix(self._gate, fixed_start(first.operations), tools)
        return replace(piece, tracks=(replace(first, operations=(awaits, *first.operations)), *others))


def common_start(left: Sequence[Fixed], right: Sequence[Fixed]) -> tuple[Fixed, ...]:
    """What both begin with; the last text may be part of one of theirs."""
    shared: list[Fixed] = []
    # Texts that follow one another are one, however they were said.
    for one, other in zip(merged(left), merged(right), strict=False):
        if one == other:
            shared.append(one)
            continue
        if isinstance(one, AppendText) and isinstance(other, AppendText):
            shared.append(AppendText(_common_text(one.text, other.text)))
        break
    return tuple(merged(shared))


def merged(fixed: Sequence[Fixed]) -> list[Fixed]:
    """The same with each run of texts as one."""
    found: list[Fixed] = []
    for part in fixed:
        match part, found:
            case AppendText(""), _:
                pass
            case AppendText(text), [*_, AppendText(before)]:
                found[-1] = AppendText(before + text)
            case _:
                found.append(part)
    return found


def say(prompt: Prompt, fixed: Sequence[Fixed], tools: tuple[ToolSpec, ...] = ()) -> None:
    """``tools``: that the calls behind it offer."""
    if tools and isinstance(prompt, ToolPrompt):
        prompt.offer_tools(ToolOffer(tools=tools))
    for part in fixed:
        match part:
            case AppendText(text):
                prompt.append_text(text)
            case AppendImage(url):
                prompt.append_image(url)
            case BeginRole(role):
                prompt.begin_role(role)
            case EndRole(role):
                prompt.end_role(role)


def _common_text(left: str, right: str) -> str:
    differs = (index for index, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    return left[: next(differs, min(len(left), len(right)))]


async def compute_ahead(backend: Backend, prompt: Prompt) -> bool:
    """Whether it succeeded: it is only a matter of time saved, and must not fail a program."""
    try:
        await backend.prefill([prompt])
    except Exception as error:
        # The boundary to the backend. The call itself will meet the same error, and tell it.
        logger.debug("a prefix could not be computed ahead: %r", error)
        return False
    return True


class PrefixGate:
    """Where the programs of one batch meet before their first calls. On the branches' loop only."""

    def __init__(self, backend: Backend, cache_salt: str = "") -> None:
        self._backend = backend
        self._cache_salt = cache_salt
        self._first: tuple[Fixed, ...] | None = None
        self._tools: tuple[ToolSpec, ...] = ()
        """That the first call of the first program offers."""
        self._shared: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.prefix: tuple[Fixed, ...] = ()
        """What was computed once."""

    async def arrive(self, start: tuple[Fixed, ...], tools: tuple[ToolSpec, ...] = ()) -> None:
        """Waits until what this program shares with the others is computed, where there is such a thing.
        ``tools``: that its first call offers."""
        if len(marked_text(start)) < MIN_PREFIX:
            return
        if self._shared is None:
            self._first, self._tools = start, tools
            self._shared = asyncio.get_running_loop().create_future()
            await self._wait(PATIENCE)
            return
        if self._first is not None:
            self._compute(common_start(self._first, start) if tools == self._tools else ())
            self._first = None
        goes_on = common_start(self.prefix, start) == self.prefix and tools == self._tools
        if self._task is not None and goes_on:
            await self._wait(None)

    def close(self) -> None:
        """The batch has ended."""
        if self._task is not None:
            self._task.cancel()

    def _compute(self, prefix: tuple[Fixed, ...]) -> None:
        if len(marked_text(prefix)) >= MIN_PREFIX:
            self.prefix = prefix
            self._task = asyncio.get_running_loop().create_task(self._fill())
            self._task.add_done_callback(lambda _: self._open())
        else:
            self._open()

    async def _fill(self) -> None:
        prompt = self._backend.prompt(cache_salt=self._cache_salt)
        say(prompt, self.prefix, self._tools)
        await compute_ahead(self._backend, prompt)

    async def _wait(self, patience: float | None) -> None:
        """Until it is computed; and with ``patience`` no longer than that for another program to come."""
        assert self._shared is not None
        await asyncio.wait([self._shared], timeout=patience)
        if self._task is not None:
            await asyncio.wait([self._shared])

    def _open(self) -> None:
        assert self._shared is not None
        if not self._shared.done():
            self._shared.set_result(None)
