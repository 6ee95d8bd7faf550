"""Branches: what carries out a program's operations, on one event loop, each branch in its own order.

A branch has a task only while it has something to do. The thread that writes the program never waits here; it
submits operations and waits, where it must, for their variables.
"""

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass

from ramet.lang.backends.base import Backend, GenerateDelta, Prompt, TellingPrompt, ToolPrompt
from ramet.lang.calls import prepare, run_generate, run_select
from ramet.lang.cancelling import Cancelling, abandon
from ramet.lang.compiler.hoist import HoistPrefix, PrefixGate, compute_ahead
from ramet.lang.compiler.piece import Fixed
from ramet.lang.compiler.pieces import COMPILED, Compilation, Pieces
from ramet.lang.compiler.shared_calls import SharedCalls
from ramet.lang.compiler.whole import SendWhole
from ramet.lang.errors import GenerationError, ProgramCancelledError, ProgramError, ProgramStructureError
from ramet.lang.ir import ToolUse
from ramet.lang.loop_thread import Calls
from ramet.lang.operations import (
    AppendImage,
    AppendText,
    AppendValue,
    AwaitPrefix,
    BeginRole,
    Choose,
    CloseScope,
    Concatenate,
    Drop,
    EndFeed,
    EndRole,
    Generate,
    OpenScope,
    Operation,
    Prewarm,
    Report,
    Spawn,
    ToolRound,
)
from ramet.lang.signals import Signal, Steps, finish_async
from ramet.lang.tool_rounds import run_with_tools
from ramet.lang.variables import Chunk, Failure, Place, TextFeed, Variable

logger = logging.getLogger(__name__)

Said = AppendText | AppendImage | BeginRole | EndRole | ToolRound
"""What a prompt is made of once everything was generated."""


@dataclass(frozen=True, slots=True)
class Common:
    """What runs share that are made together."""

    calls: SharedCalls
    gate: PrefixGate | None
    """Where they meet before their first calls; None: they do not."""


class Execution:
    """One run of a program: its tree of branches, and what failed in it. Thread-safe."""

    def __init__(
        self,
        program: str,
        program_id: str,
        backend: Backend,
        thread: Calls,
        compilation: Compilation = COMPILED,
        common: Common | None = None,
        *,
        cache_salt: str = "",
    ) -> None:
        """``common``: what the runs of one batch share. ``cache_salt``: with whom prefixes are shared."""
        self.program = program
        self.program_id = program_id
        self.backend = backend
        self.cache_salt = cache_salt
        self.thread = thread
        common = common or Common(SharedCalls(backend.capabilities), None)
        self.calls = common.calls if compilation.compiles else None
        """None: no call is shared."""
        hoist = () if common.gate is None or not compilation.compiles else (HoistPrefix(common.gate),)
        self._whole = SendWhole(self)
        """The last pass: where the backend takes whole programs, it gets this one."""
        last = (self._whole,) if compilation.compiles else ()
        self.pieces = Pieces(thread, compilation.pace, (*compilation.passes(), *hoist, *last))
        self.cancelling = Cancelling()
        self._warming: set[asyncio.Task[None]] | None = set()
        """None: nothing is computed ahead any more. For the loop's thread only."""
        self.cancelled: ProgramCancelledError | None = None
        self._lock = threading.Lock()
        self._quiet = Signal()
        self._num_busy = 0
        self._failures: list[tuple[Branch, Failure]] = []
        self.root = Branch(self, "0", ForkGroup())
        self.root.begin(None)

    def cancel(self, reason: str) -> None:
        """Every branch ends as soon as its backend lets go; what waits for one gets ProgramCancelledError."""
        error = ProgramCancelledError(f"the program was cancelled: {reason}", program=self.program)
        self.cancelled = error
        self.thread.call(self.root.cancel, Failure(error))

    def close(self) -> None:
        """The run has ended. From any thread."""
        self._whole.close()

    def becoming_quiet(self) -> Steps[None]:
        """Waits until no branch has anything to do."""
        yield self._quiet, lambda: self._num_busy == 0

    def undelivered(self) -> list[ProgramError]:
        """The errors that nobody was told, the earliest first; told herewith."""
        with self._lock:
            failures = list(self._failures)
        return [
            failure.deliver() for branch, failure in failures if not (failure.delivered or branch.group.excused)
        ]

    def warm(self, prompt: Prompt) -> None:
        """Has the prompt computed in the background, until the body ends. On the loop's thread."""
        if self._warming is None:
            return
        self.branch_became_busy()
        task = asyncio.get_running_loop().create_task(self._compute(prompt))
        self._warming.add(task)
        task.add_done_callback(self._end_warming)

    def stop_warming(self) -> None:
        """The body has ended: no call comes for which it would be worth while. From any thread."""
        self.thread.call(self._cancel_warming)

    async def _compute(self, prompt: Prompt) -> None:
        await compute_ahead(self.backend, prompt)

    def _cancel_warming(self) -> None:
        warming, self._warming = self._warming or (), None
        for task in warming:
            task.cancel()

    def _end_warming(self, task: "asyncio.Task[None]") -> None:
        if self._warming is not None:
            self._warming.discard(task)
        self.branch_became_quiet()

    def branch_became_busy(self) -> None:
        with self._lock:
            self._num_busy += 1

    def branch_became_quiet(self) -> None:
        with self._lock:
            self._num_busy -= 1
        self._quiet.notify()

    def add_failure(self, branch: "Branch", failure: Failure) -> None:
        with self._lock:
            self._failures.append((branch, failure))


class ForkGroup:
    """Branches that one fork made."""

    def __init__(self, *, keep_errors: bool = False) -> None:
        self.branches: tuple[Branch, ...] = ()
        self.keep_errors = keep_errors
        """One that fails leaves the others alone."""
        self.excused = False
        """A join has taken what failed in here: it is not lost."""


class Branch:
    """Invariant: operations are carried out in the order submitted; after the first that fails, none."""

    def __init__(self, execution: Execution, path: str, group: ForkGroup) -> None:
        self.execution = execution
        self.path = path
        self.group = group
        self.place = Place(execution.program, path)
        self.said: list[Said] = []
        """Since the fork."""
        self._lock = threading.Lock()
        self._held: list[Operation] = []
        """Told, and not handed on yet: part of a piece that is still open."""
        self._queue: deque[Operation] = deque()
        self._busy = False
        self._begun = False
        self._dropped: Failure | None = None
        """Something was left out here, since nobody was to read it."""
        self._failure: Failure | None = None
        self._quiet = Signal()
        self._new_feeds: list[TextFeed] = []
        """They join when it is certain what of a running call the prompt has already."""
        # Below: for the loop's thread only.
        self._prompt: Prompt | None = None
        self._task: asyncio.Task[None] | None = None
        self._children: list[Branch] = []
        self._scopes: list[int] = []
        self._feeds: dict[TextFeed, object] = {}
        """Each with what the prompt told of when its text was first shown there; None: it was not yet."""
        self._is_shown = False
        """Nothing was said since the text was last shown."""
        self._partial = ""
        """What a running call has generated, which the prompt has not got."""

    @property
    def failure(self) -> Failure | None:
        return self._failure

    def submit(self, operation: Operation) -> None:
        """From any thread. On a branch that has failed its variable fails at once."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._held.append(operation)
        if failure is not None:
            self.execution.thread.call(abandon, operation, failure)
        else:
            self.execution.pieces.touch(self)

    def take_held(self) -> tuple[Operation, ...]:
        """What the branch was told since the last time, for a piece."""
        with self._lock:
            held, self._held = tuple(self._held), []
        return held

    def enqueue(self, operations: tuple[Operation, ...]) -> None:
        """To be carried out in this order, once the branch is woken."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._queue.extend(operations)
        if failure is not None:
            for operation in operations:
                self.execution.thread.call(abandon, operation, failure)

    def begin(self, prompt: Prompt | None) -> None:
        """Goes on from ``prompt``, which is the branch's from now on; None: an empty one."""
        with self._lock:
            self._prompt = prompt
            self._begun = True
        self.wake()

    def watch(self, feed: TextFeed) -> None:
        """Puts into ``feed`` what was said already and what will be. From any thread.

        The feed is known when this returns: an EndFeed that is submitted next finds it, however soon it runs.
        """
        with self._lock:
            failure = self._failure
            if failure is None:
                self._new_feeds.append(feed)
        self.execution.thread.call(self._welcome, feed, failure)

    def _welcome(self, feed: TextFeed, failure: Failure | None) -> None:
        if failure is not None:
            self._show_rest(feed, None)
            feed.end(failure)
        elif self._task is None:
            self._admit_feeds()

    def report(self, report: Report) -> None:
        """Of what was said so far, even on a branch that has failed. On the loop's thread."""
        if self._dropped is not None and report.what != "nothing":
            report.variable.fail(self._dropped)
            return
        try:
            match report.what:
                case "text":
                    report.variable.finish(self.text_so_far())
                case "messages":
                    report.variable.finish([] if self._prompt is None else self._prompt.messages())
                case _:
                    report.variable.finish(None)
        except Exception as error:
            # The boundary to the backend, whose template may refuse the turns: told to who has asked.
            report.variable.fail(Failure(self._located(error, None)))

    def text_so_far(self) -> str:
        """On the loop's thread."""
        return "" if self._prompt is None else self._prompt.text()

    def cancel(self, failure: Failure) -> None:
        """Ends what runs and refuses the rest, here and in all branches below. On the loop's thread."""
        self.execution.cancelling.cancel(self, failure)

    def end(self, failure: Failure) -> None:
        """As ``cancel`` has it done."""
        pending = self._close(failure)
        if self._task is not None:
            self._task.cancel()
        self._give_up(pending, failure)

    def wake(self) -> None:
        """Begins with what is queued, if there is anything and the branch does not run already."""
        with self._lock:
            if self._busy or not self._begun or not self._queue:
                return
            self._busy = True
        self.execution.branch_became_busy()
        self.execution.thread.call(self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._carry_out())
        self._task.add_done_callback(self._rest)

    def _rest(self, _: "asyncio.Task[None]") -> None:
        self._task = None
        self._admit_feeds()
        with self._lock:
            self._busy = False
        self.wake()
        self._quiet.notify()
        self.execution.branch_became_quiet()

    async def _carry_out(self) -> None:
        while self._queue:
            operation = self._queue.popleft()
            try:
                await self._perform(operation)
            except asyncio.CancelledError:
                self._fail(self._failure or self._aborted(operation), operation)
            except Exception as error:
                # The boundary to the backend: whatever it raises is this branch's failure, and is told as one.
                self._fail(Failure(self._located(error, _variable_of(operation))), operation)

    def _fail(self, failure: Failure, operation: Operation) -> None:
        abandon(operation, failure)
        if self._failure is not None:
            return
        self.execution.add_failure(self, failure)
        self._give_up(self._close(failure), failure)
        if not self.group.keep_errors:
            for sibling in self.group.branches:
                if sibling is not self:
                    sibling.cancel(failure.seen_from_outside())

    def _close(self, failure: Failure) -> list[Operation]:
        """Takes no operation any more; gives back those that were not begun."""
        with self._lock:
            if self._failure is None:
                self._failure = failure
            pending = [*self._queue, *self._held]
            self._queue.clear()
            self._held.clear()
        return pending

    def _give_up(self, pending: list[Operation], failure: Failure) -> None:
        for operation in pending:
            abandon(operation, failure)
        for child in self._children:
            child.cancel(failure.seen_from_outside())
        for feed, told in (self._feeds | dict.fromkeys(self._take_new_feeds())).items():
            self._show_rest(feed, told)
            feed.end(failure)
        self._feeds.clear()

    async def _perform(self, operation: Operation) -> None:
        if self._prompt is None:
            self._prompt = self.execution.backend.prompt(cache_salt=self.execution.cache_salt)
        match operation:
            case AppendText() | AppendValue() | AppendImage() | BeginRole() | EndRole():
                self._say(await _known(operation))
            case Generate(tools=ToolUse() as tools):
                self.said += await run_with_tools(self._prompt, operation, tools, self)
                self.show()
            case Generate() | Choose():
                self.show()
                prepare(self._prompt, operation)
                await self._call(self._prompt, operation)
                self.show()
            case OpenScope() | CloseScope():
                self._scope(operation)
            case Spawn(children):
                for child in children:
                    self._children.append(child)
                    child.begin(self._prompt.fork())
            case Concatenate():
                await self._concatenate(operation)
            case Report():
                self.report(operation)
            case EndFeed(feed):
                self._end_feed(feed)
            case AwaitPrefix() | Prewarm() | Drop():
                await self._follow(operation)

    async def _follow(self, advice: AwaitPrefix | Prewarm | Drop) -> None:
        """What the compiler has put in."""
        assert self._prompt is not None
        match advice:
            case AwaitPrefix(gate, start, tools):
                await gate.arrive(start, tools)
            case Prewarm() if not self._queue:
                self.execution.warm(self._prompt.fork())
            case Prewarm():
                pass  # What comes next is here already.
            case Drop(operations):
                self._drop(operations)

    async def _call(self, prompt: Prompt, operation: Generate | Choose) -> None:
        calls = self.execution.calls
        shared = None if calls is None else calls.join(prompt, operation)
        try:
            if isinstance(operation, Generate):
                text = await run_generate(shared or prompt, operation, self.show_delta)
            else:
                text = await run_select(shared or prompt, operation)
        finally:
            if shared is not None:
                self._prompt = shared.after()
        self._remember(text)

    def _drop(self, operations: tuple[Operation, ...]) -> None:
        self._dropped = Failure(
            self.place.error(
                ProgramStructureError,
                "this was left out: the program was compiled for other outputs; add this one to them",
            )
        )
        for operation in operations:
            abandon(operation, self._dropped)

    def _say(self, said: Said) -> None:
        assert self._prompt is not None
        match said:
            case AppendText(text):
                self._prompt.append_text(text)
            case AppendImage(url):
                self._prompt.append_image(url)
            case BeginRole(role):
                self._prompt.begin_role(role)
            case EndRole(role):
                self._prompt.end_role(role)
            case ToolRound(results):
                assert isinstance(self._prompt, ToolPrompt)
                self._prompt.append_tool_calls([call for call, _ in results])
                self._prompt.append_tool_results(results)
        self.said.append(said)
        self._is_shown = False

    def _scope(self, operation: OpenScope | CloseScope) -> None:
        match operation:
            case OpenScope():
                self._scopes.append(len(self.said))
            case CloseScope(variable):
                text = _plain_text(self.said[self._scopes.pop() :])
                variable.add_text(text)
                variable.finish(text)

    def _remember(self, text: str) -> None:
        """The prompt has it already."""
        if text:
            self.said.append(AppendText(text))

    async def _concatenate(self, operation: Concatenate) -> None:
        for child in operation.children:
            await child._quiet.wait_async(child._is_quiet)
            if child._failure is None:
                for said in child.said:
                    self._say(said)
            elif not operation.keep_errors:
                raise child._failure.seen_from_outside().deliver()

    def _is_quiet(self) -> bool:
        with self._lock:
            if self._failure is not None:
                return True
            return self._begun and not (self._busy or self._queue or self._held)

    def show(self) -> None:
        """Lets those who watch the branch's text see it as it is now, where no call runs.

        Done where a call begins and ends, and not as the text is said: a call may still offer tools, and a
        prompt tells of them before all else.
        """
        self._is_shown = True
        self._partial = ""
        self._feeds = self._shown_to(self._feeds)
        self._admit_feeds()

    def _shown_to(self, feeds: dict[TextFeed, object]) -> dict[TextFeed, object]:
        """Shows them the text, and gives back those that go on."""
        if feeds and isinstance(self._prompt, TellingPrompt):
            now = self._prompt.told()
            feeds = {feed: now if told is None else told for feed, told in feeds.items()}
        try:
            for feed, told in feeds.items():
                _catch_up(feed, self._text_telling(told) + self._partial)
        except Exception as error:
            # The boundary to the backend, whose template may refuse the turns: told to who reads.
            failure = Failure(self._located(error, None))
            for feed in feeds:
                feed.end(failure)
            return {}
        return feeds

    def _text_telling(self, told: object) -> str:
        """What was said, as somebody reads it who was told so of tools."""
        if told is not None and isinstance(self._prompt, TellingPrompt):
            return self._prompt.text_telling(told)
        return self.text_so_far()

    def _show_rest(self, feed: TextFeed, told: object) -> None:
        """What was said and not shown when the branch failed."""
        try:
            _catch_up(feed, self._text_telling(told))
        except Exception as error:
            # The boundary to the backend, whose template may refuse the turns: that is why the branch failed.
            logger.debug("the text of a failed branch cannot be shown: %r", error)

    def show_delta(self, delta: GenerateDelta) -> None:
        """An increment of the running call."""
        # The prompt may have the whole answer by the time of its last increment.
        if delta.finish_reason is None:
            self._admit_feeds()
        said = delta.text if delta.spelled is None else delta.spelled
        self._partial += said
        if said:
            for feed in self._feeds:
                feed.add(Chunk(said))

    def _admit_feeds(self) -> None:
        new_feeds: dict[TextFeed, object] = dict.fromkeys(self._take_new_feeds())
        self._feeds |= self._shown_to(new_feeds) if self._is_shown else new_feeds

    def _take_new_feeds(self) -> list[TextFeed]:
        with self._lock:
            new_feeds, self._new_feeds = self._new_feeds, []
        return new_feeds

    def _end_feed(self, feed: TextFeed) -> None:
        self.show()
        if feed not in self._feeds:
            return
        told = self._feeds.pop(feed)
        failure = self._dropped
        if failure is None and feed.text != self._text_telling(told):
            failure = Failure(
                self.place.error(
                    ProgramStructureError,
                    "the chat template has changed text that was streamed already; stream single variables",
                )
            )
        feed.end(failure)

    def _aborted(self, operation: Operation) -> Failure:
        message = "the backend cancelled the call"
        return Failure(self.place.error(GenerationError, message, _variable_of(operation)))

    def _located(self, error: Exception, variable: str | None) -> ProgramError:
        """The error with its place; what is no program's error yet becomes one, chained."""
        match error:
            case ProgramError() if error.program:
                return error
            case ProgramError():
                located = self.place.error(type(error), error.message, variable)
                located.__cause__ = error.__cause__ or error
                return located
            case _:
                located = self.place.error(GenerationError, f"{type(error).__name__}: {error}", variable)
        located.__cause__ = error
        return located


async def _known(operation: Fixed | AppendValue) -> Fixed:
    """What is said; raises the error of a value that there is not."""
    if not isinstance(operation, AppendValue):
        return operation
    await finish_async(operation.variable.settling())
    return AppendText(format(operation.variable.value(), ""))


def _catch_up(feed: TextFeed, text: str) -> None:
    """Adds what the feed has not of the text; nothing where it has another one."""
    seen = feed.text
    if text.startswith(seen) and len(text) > len(seen):
        feed.add(Chunk(text[len(seen) :]))


def _variable_of(operation: Operation) -> str | None:
    match operation:
        case Generate(variable=Variable(name=name)) | Choose(variable=Variable(name=name)):
            return name
        case _:
            return None


def _plain_text(said: list[Said]) -> str:
    return "".join(item.text for item in said if isinstance(item, AppendText))
