"""Pass: calls that ask the same of the same prompt are made once, where the answer must be the same.

It must be where nothing is drawn (temperature 0) or it is drawn with the same seed, and the backend says that
it repeats itself: the same prompt and parameters always give the same tokens. This one happens while the calls
are made, since most prompts are known only then.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable

import msgspec

from ramet.lang.backends.base import (
    Capabilities,
    GenerateDelta,
    IdentifiedPrompt,
    Prompt,
    SelectRequest,
    SelectResult,
)
from ramet.lang.compiler.tags import tag_of
from ramet.lang.operations import Choose, Generate
from ramet.runtime.protocol import ProgramTag, SamplingParams

MAX_REMEMBERED = 1024
"""Answered calls that are kept for those that ask again."""

Key = tuple[str, Hashable, bytes]
OnMerge = Callable[[ProgramTag, ProgramTag], object]
"""The tags of a call that is made, and of one that it answers."""
Ask = Callable[[Prompt], AsyncIterator[GenerateDelta]]


def is_repeatable(call: Generate | Choose) -> bool:
    """Whether its parameters alone leave no choice of the answer."""
    match call:
        case Generate(tools=tools, lora=lora) if tools is not None or lora is not None:
            return False
        case Generate(params=params):
            return params.is_greedy or params.seed is not None
        case Choose(request=request):
            return request.temperature <= 0 or request.seed is not None


def question(call: Generate | Choose) -> bytes:
    """What is asked, as bytes that are equal for equal questions; not by whom."""
    match call:
        case Generate(params=params):
            return msgspec.json.encode(params)
        case Choose(request=request):
            return msgspec.json.encode(msgspec.structs.replace(request, tag=ProgramTag(), priority=0))


class SharedCalls:
    """The calls of one run, or of all runs of a batch. On the branches' loop only."""

    def __init__(self, capabilities: Capabilities, on_merge: OnMerge | None = None) -> None:
        self._repeatable = capabilities.repeatable
        self._on_merge = on_merge
        self._calls: OrderedDict[Key, SharedCall] = OrderedDict()
        self.num_merged = 0
        """Calls that were answered by another one."""

    def join(self, prompt: Prompt, call: Generate | Choose) -> "SharedPrompt | None":
        """A prompt to make this one call of instead; None where it cannot be shared."""
        if not self._repeatable or not is_repeatable(call) or not isinstance(prompt, IdentifiedPrompt):
            return None
        key = type(call).__name__, prompt.identity(), question(call)
        shared = self._calls.get(key)
        if shared is None or shared.failed:
            shared = self._calls[key] = SharedCall(prompt.fork(), tag_of(call))
        else:
            self.num_merged += 1
            if self._on_merge is not None:
                self._on_merge(shared.tag, tag_of(call))
        self._calls.move_to_end(key)
        self._forget()
        return SharedPrompt(prompt, shared)

    def _forget(self) -> None:
        while len(self._calls) > MAX_REMEMBERED:
            self._calls.popitem(last=False)


class SharedCall:
    """One call for all who ask. It ends with the last of them, if it has not ended before."""

    def __init__(self, prompt: Prompt, tag: ProgramTag) -> None:
        self.tag = tag
        """Of who asked first."""
        self.prompt = prompt
        """Has the answer once the call has succeeded."""
        self.deltas: list[GenerateDelta] = []
        self.result: SelectResult | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._num_users = 0
        self._abandoned = False

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def failed(self) -> bool:
        """It has no answer, and will not have one."""
        return self._abandoned or (self.done and not self.succeeded)

    @property
    def succeeded(self) -> bool:
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def enter(self, ask: "Ask | SelectRequest") -> None:
        """One more asks; the backend is asked if nobody has done so yet."""
        self._num_users += 1
        if self._task is None:
            run = self._select(ask) if isinstance(ask, SelectRequest) else self._generate(ask(self.prompt))
            self._task = asyncio.get_running_loop().create_task(run)
            self._task.add_done_callback(lambda _: self._notify())

    async def leave(self) -> None:
        """One less asks. The last one waits until a call that nobody wants any more has ended."""
        self._num_users -= 1
        if not self._num_users and self._task is not None and not self._task.done():
            self._abandoned = True
            self._task.cancel()
            await asyncio.wait([self._task])

    async def more_than(self, position: int) -> bool:
        """Waits until there are more increments; False: there will be none. Raises what the call raised."""
        while len(self.deltas) <= position and not self.done:
            await self._changed.wait()
        if len(self.deltas) > position:
            return True
        assert self._task is not None
        if self._task.cancelled():
            raise asyncio.CancelledError
        if (error := self._task.exception()) is not None:
            raise error
        return False

    async def _generate(self, stream: AsyncIterator[GenerateDelta]) -> None:
        async for delta in stream:
            self.deltas.append(delta)
            self._notify()

    async def _select(self, request: SelectRequest) -> None:
        self.result = await self.prompt.select(request)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class SharedPrompt:
    """A branch's prompt for the one call that it shares; ``after`` is the prompt with the answer."""

    def __init__(self, prompt: Prompt, shared: SharedCall) -> None:
        self._prompt = prompt
        self._shared = shared

    def after(self) -> Prompt:
        """The branch's prompt from now on: as it was, where there is no answer."""
        return self._shared.prompt.fork() if self._shared.succeeded else self._prompt

    async def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        shared = self._shared
        shared.enter(lambda own: own.generate(params, tag=tag, priority=priority))
        try:
            position = 0
            while await shared.more_than(position):
                yield shared.deltas[position]
                position += 1
        finally:
            await shared.leave()

    async def select(self, request: SelectRequest) -> SelectResult:
        shared = self._shared
        shared.enter(request)
        try:
            await shared.more_than(0)
        finally:
            await shared.leave()
        assert shared.result is not None
        return shared.result
