"""ProgramState: the ``s`` of a program, and what ``run`` returns. ProgramStateGroup: what ``fork`` returns."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, overload, runtime_checkable

from ramet.lang.backends.base import Capabilities
from ramet.lang.errors import ProgramCancelledError, ProgramError, ProgramStructureError
from ramet.lang.interpreter import Branch, ForkGroup
from ramet.lang.ir import Expression, Node, RoleBegin, RoleEnd, VarScopeBegin, VarScopeEnd, as_node
from ramet.lang.outline import Outline
from ramet.lang.reading import Reader, Run
from ramet.lang.signals import finish, finish_async
from ramet.lang.variables import Chunk, Failure, Place, Variable, known_variable


@runtime_checkable
class Inlined(Protocol):
    """A program that can be said inside another one."""

    def inline(self, state: "ProgramState") -> object: ...


class ProgramState:
    """One branch of a program: what it has said, and its variables.

    Saying (``+=``) never waits; reading does, for what it reads. An error of a call is raised where its
    variable is read, and at the program's end where nobody reads it. After an error the branch does nothing
    more. In an ``async def`` program read through ``aio``, which waits without blocking.
    """

    def __init__(
        self,
        outline: Outline,
        reader: Reader,
        *,
        run: Run | None = None,
        leave: Callable[[bool], None] | None = None,
    ) -> None:
        self._outline = outline
        self._reader = reader
        self._run = run
        self._leave = leave

    def __iadd__(self, expression: Expression | Inlined) -> Self:
        """Says it. Raises ProgramStructureError or UnsupportedError, and then nothing of it is said."""
        if isinstance(expression, Inlined):
            expression.inline(self)
        else:
            self._outline.say(as_node(expression))
        return self

    def __getitem__(self, name: str) -> Any:
        """The variable's value, once it is there.

        Raises:
            UnknownVariableError: no call of this program makes it.
            GenerationError, BranchError: the call that makes it failed.
            ProgramCancelledError: the program was cancelled.
        """
        return finish(self._reader.value(name))

    def __setitem__(self, name: str, value: object) -> None:
        self._outline.set(known_variable(name, self._outline.place, value))

    def __contains__(self, name: object) -> bool:
        """Whether there is such a variable, or a call that will make it."""
        return isinstance(name, str) and self._outline.find(name) is not None

    @property
    def capabilities(self) -> Capabilities:
        """What the backend of this program can do."""
        return self._outline.terms.capabilities

    @property
    def ret_value(self) -> Any:
        """What the program's function returned."""
        return None if self._run is None else self._run.return_value

    @property
    def aio(self) -> "AsyncReading":
        """The same for coroutines: ``await s.aio.get("name")``."""
        return AsyncReading(self._reader)

    def get_var(self, name: str) -> Any:
        """``state[name]``"""
        return self[name]

    def set_var(self, name: str, value: object) -> None:
        """``state[name] = value``"""
        self[name] = value

    def get_meta_info(self, name: str) -> Any:
        """What the backend said about the call that made the variable, once it has ended: a dict with
        finish_reason, stop_reason, token_ids, logprobs, prompt_logprobs, prompt_tokens, cached_tokens,
        completion_tokens, stats; with tools also tool_calls and rounds;
        for a select choices, index, scores and token_logprobs. A list of them where the variable is a list;
        None where no call made it.
        """
        return finish(self._reader.meta(name))

    def text(self) -> str:
        """Everything said so far as the model reads it, once it is there."""
        return str(finish(self._reader.report("text")))

    def messages(self) -> list[dict[str, object]]:
        """The roles so far, as chat messages."""
        return finish(self._reader.report("messages"))

    def sync(self) -> None:
        """Waits until everything said so far is there; raises the branch's error."""
        finish(self._reader.report("nothing"))

    def error(self) -> BaseException | None:
        """As ``sync``, but returns the error."""
        return finish(self._reader.error())

    def cancel(self) -> None:
        """Ends this branch and those forked from it; what waits for them gets ProgramCancelledError."""
        branch = self._outline.branch
        error = self._outline.place.error(ProgramCancelledError, "the branch was cancelled")
        branch.execution.thread.call(branch.cancel, Failure(error))

    def system(self, expression: Expression | None = None) -> Any:
        """``system(expression)``; without one, for ``with s.system(): ...``."""
        return self._role("system", expression)

    def user(self, expression: Expression | None = None) -> Any:
        """``user(expression)``; without one, for ``with s.user(): ...``."""
        return self._role("user", expression)

    def assistant(self, expression: Expression | None = None) -> Any:
        """``assistant(expression)``; without one, for ``with s.assistant(): ...``."""
        return self._role("assistant", expression)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """What is said inside, without the template around roles, becomes the variable."""
        self._outline.say(VarScopeBegin(name))
        yield
        self._outline.say(VarScopeEnd(name))

    def fork(
        self, size: int = 1, position_ids_offset: object = None, *, return_errors: bool = False
    ) -> "ProgramStateGroup":
        """Branches that go on from here, each on its own, at once.

        Where one fails the others are cancelled, and who reads or joins them gets BranchError; with
        ``return_errors`` they go on, and ``join`` puts the error in the place of the branch that failed.
        ``position_ids_offset`` is SGLang's, where it does nothing; here it is refused.
        """
        if position_ids_offset is not None:
            raise self._outline.place.error(
                ProgramStructureError,
                f"position_ids_offset is {position_ids_offset!r}; a branch goes on at the position that it was "
                "forked at: leave it out",
            )
        return _fork(self._outline, self._reader, size, return_errors=return_errors)

    def copy(self) -> "ProgramState":
        """One branch that goes on from here. As a context manager it is joined at the end."""
        return _fork(self._outline, self._reader, 1, return_errors=False, joins=True)[0]

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The variable's text as it is generated; without a name everything that is said.

        In the program: as far as it was said by now. From outside: to the program's end. Errors are raised
        after the text that came before.
        """
        for chunk in self._chunks(var_name):
            if chunk.text:
                yield chunk.text

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """As ``text_iter``, for coroutines. With ``return_meta_data``: pairs of text and a dict, with the
        token_ids and logprobs of the increment where it has them.
        """
        async for chunk in self._chunks_async(var_name):
            if return_meta_data:
                yield chunk.text, chunk.meta
            elif chunk.text:
                yield chunk.text

    def __enter__(self) -> Self:
        """Of a copy, which is joined at the end; or of a stream, which is cancelled where it still runs."""
        if self._leave is None:
            raise self._outline.place.error(
                ProgramStructureError, "only copies and streams are context managers; use fork or var_scope"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leave is not None:
            self._leave(error is None)

    def _chunks(self, name: str | None) -> Iterator[Chunk]:
        feed = self._reader.feed() if name is None else finish(self._reader.variable(name)).stream()
        try:
            yield from feed
        except ProgramError as error:
            finish(self._reader.failing(error))
        if name is None:
            finish(self._reader.after_stream())

    async def _chunks_async(self, name: str | None) -> AsyncIterator[Chunk]:
        feed = (
            self._reader.feed() if name is None else (await finish_async(self._reader.variable(name))).stream()
        )
        try:
            async for chunk in feed:
                yield chunk
        except ProgramError as error:
            await finish_async(self._reader.failing(error))
        if name is None:
            await finish_async(self._reader.after_stream())

    def _role(self, role: str, expression: Expression | None) -> Node | AbstractContextManager[None]:
        if expression is None:
            return self._inside(role)
        return RoleBegin(role) + as_node(expression) + RoleEnd(role)

    @contextmanager
    def _inside(self, role: str) -> Iterator[None]:
        self._outline.say(RoleBegin(role))
        yield
        self._outline.say(RoleEnd(role))


class AsyncReading:
    """What waits, as coroutines; for the meaning see the methods of the same names in ProgramState."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def get(self, name: str) -> Any:
        return await finish_async(self._reader.value(name))

    async def get_meta_info(self, name: str) -> Any:
        return await finish_async(self._reader.meta(name))

    async def text(self) -> str:
        return str(await finish_async(self._reader.report("text")))

    async def messages(self) -> list[dict[str, object]]:
        return await finish_async(self._reader.report("messages"))

    async def sync(self) -> None:
        await finish_async(self._reader.report("nothing"))

    async def error(self) -> BaseException | None:
        return await finish_async(self._reader.error())


class ProgramStateGroup:
    """The branches of one fork, in order. As a context manager it is joined at the end."""

    def __init__(self, parent: Outline, states: Sequence[ProgramState], group: ForkGroup) -> None:
        self._parent = parent
        self._states = tuple(states)
        self._group = group

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ProgramState]: ...

    def __getitem__(self, index: int | slice) -> ProgramState | Sequence[ProgramState]:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """What Python does at the end of ``group[index] += expression``; a branch cannot be replaced."""
        if self._states[index] is not state:
            raise self._parent.place.error(
                ProgramStructureError, "a branch cannot be replaced by another state; add to it with +="
            )

    def __iadd__(
        self, expression: Expression | Inlined | Sequence[Expression | Inlined] | Callable[[int], object]
    ) -> Self:
        """Says the same in every branch; of a list each its own; of a function what it gives for the index."""
        each = _for_each(expression, len(self._states), self._parent.place)
        for state, own in zip(self._states, each, strict=True):
            state += own
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Ends the branches and takes up what they made. It does not wait; who reads the result does.

        gather_variable: every name that a branch has set becomes the list of its values, in the branches'
        order; None in the place of a branch that has none. Names that no branch has set stay as they were.
        concate_and_append: what the branches said follows here, in their order.

        Raises:
            ProgramStructureError: there is no such mode, or it was joined before.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise self._parent.place.error(
                ProgramStructureError,
                f"join mode is {mode!r}; it must be 'gather_variable' or 'concate_and_append'",
            )
        children = [state._outline for state in self._states]
        if any(child.ended for child in children):
            raise self._parent.place.error(ProgramStructureError, "these branches were joined before")
        keep_errors = self._group.keep_errors
        if mode == "gather_variable":
            self._parent.gather(children, keep_errors=keep_errors)
        else:
            self._parent.concatenate(children, keep_errors=keep_errors)
        self._group.excused = self._group.excused or keep_errors
        for child in children:
            child.end("the branch was joined")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not any(state._outline.ended for state in self._states):
            self.join()


def variable_to_say(state: ProgramState, name: str, *, formats: bool) -> Variable | None:
    """What ``state[name]`` will be, if saying it later is as good as reading it: not where it is there already,
    is not known, or would be no text where only text can be said (``formats``: it is put into an f-string).
    """
    variable = state._outline.find(name)
    if variable is None or variable.settled:
        return None
    is_text = variable.is_text and variable.num_answers == 1 and variable.parts is None
    return variable if is_text or formats else None


def nothing_follows(state: ProgramState) -> None:
    """The program's body has said everything: what it said since the last wait is a piece, and the last one."""
    state._outline.branch.execution.pieces.release(whole=True)


def _for_each(expression: object, size: int, place: Place) -> list[Any]:
    match expression:
        case list() | tuple() if len(expression) == size:
            return list(expression)
        case list() | tuple():
            raise place.error(
                ProgramStructureError, f"{len(expression)} expressions for {size} branches; give one for each"
            )
        case Inlined():
            return [expression] * size
        case _ if callable(expression):
            return [expression(index) for index in range(size)]
        case _:
            return [as_node(expression)] * size


def _fork(
    outline: Outline, reader: Reader, size: int, *, return_errors: bool, joins: bool = False
) -> ProgramStateGroup:
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise outline.place.error(
            ProgramStructureError, f"fork size is {size!r}; it must be a whole number of at least 0"
        )
    forked = ForkGroup(keep_errors=return_errors)

    def branches(paths: Iterator[str]) -> Sequence[Branch]:
        forked.branches = tuple(
            Branch(outline.branch.execution, path, forked) for _, path in zip(range(size), paths, strict=False)
        )
        return forked.branches

    def leave(succeeded: bool) -> None:
        if succeeded:
            group.__exit__(None, None, None)

    states = [
        ProgramState(child, reader.of(child), leave=leave if joins else None)
        for child in outline.spawn(branches)
    ]
    group = ProgramStateGroup(outline, states, forked)
    return group
