"""One run of a program, from the first line of its body to the end of its last branch."""

import asyncio
import contextvars
import secrets
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from ramet.lang.backends.base import Backend
from ramet.lang.compiler.pieces import COMPILED, Compilation
from ramet.lang.compiler.trace import refuse_while_tracing
from ramet.lang.errors import ProgramError
from ramet.lang.interpreter import Common, Execution
from ramet.lang.loop_thread import bodies_loop, branches_loop, refuse_to_block_branches
from ramet.lang.options import Sampling
from ramet.lang.outline import Outline, Terms
from ramet.lang.reading import OutsideReader, Reader, Run
from ramet.lang.signals import Steps, finish, finish_async
from ramet.lang.state import ProgramState
from ramet.lang.variables import Variable


@dataclass(frozen=True, slots=True)
class Invocation:
    """A program's function with everything that it is to be run with."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backend: Backend
    defaults: Sampling
    compilation: Compilation = COMPILED
    cache_salt: str = ""
    """Prefixes are shared only between runs of the same salt."""


class Session:
    """An invocation that runs, once. ``run``, ``arun`` and ``stream`` are the three ways."""

    def __init__(self, invocation: Invocation, common: Common | None = None) -> None:
        """``common``: what it shares with other runs that are made together."""
        refuse_while_tracing(invocation.name)
        self._invocation = invocation
        program_id = f"{invocation.name}-{secrets.token_hex(6)}"
        self._thread = branches_loop()
        self._execution = Execution(
            invocation.name,
            program_id,
            invocation.backend,
            self._thread,
            invocation.compilation,
            common,
            cache_salt=invocation.cache_salt,
        )
        self._outline = Outline(
            self._execution.root, Terms(invocation.backend.capabilities, invocation.defaults)
        )
        self._run = Run()
        self._state = ProgramState(self._outline, Reader(self._outline), run=self._run)
        self.outside = ProgramState(
            self._outline, OutsideReader(self._outline, self._run), run=self._run, leave=self._leave
        )
        self._task: asyncio.Task[None] | None = None
        """The state as whoever runs the program gets it."""

    def run(self) -> ProgramState:
        """In this thread. Raises the body's error, or that of a call that nobody was told of."""
        refuse_to_block_branches()
        self._run_body()
        self._run.raise_error()
        return self.outside

    async def arun(self, executor: Executor | None = None) -> ProgramState:
        """As ``run``. An async body runs on the running loop, another one on a thread of the executor's."""
        try:
            value = await self._body() if self._invocation.is_async else await self._body_in_thread(executor)
            await finish_async(self._close(value, None))
        except BaseException as error:
            await finish_async(self._close(None, error))
            self._run.error()
            raise
        self._run.raise_error()
        return self.outside

    def stream(self) -> ProgramState:
        """Runs it in the background: an async body on the running loop where there is one."""
        if not self._invocation.is_async:
            context = contextvars.copy_context()
            name = f"ramet program {self._invocation.name}"
            threading.Thread(target=context.run, args=(self._run_body,), name=name, daemon=True).start()
            return self.outside
        try:
            self._task = asyncio.get_running_loop().create_task(self._arun_quietly())
        except RuntimeError:
            bodies_loop().start(self._arun_quietly())
        return self.outside

    def _run_body(self) -> None:
        """Never raises: what went wrong is the run's error."""
        invocation = self._invocation
        with self._thread.used(self._leave_at_exit):
            try:
                value = invocation.function(self._state, *invocation.args, **invocation.kwargs)
                finish(self._close(value, None))
            except BaseException as error:
                # Whatever it is, Ctrl-C included, what runs is ended first; the run then has the error.
                finish(self._close(None, error))

    async def _body(self) -> object:
        invocation = self._invocation
        return await cast(
            Awaitable[object], invocation.function(self._state, *invocation.args, **invocation.kwargs)
        )

    async def _body_in_thread(self, executor: Executor | None) -> object:
        invocation = self._invocation
        context = contextvars.copy_context()

        def body() -> object:
            return context.run(invocation.function, self._state, *invocation.args, **invocation.kwargs)

        if executor is not None:
            return await asyncio.get_running_loop().run_in_executor(executor, body)
        own = ThreadPoolExecutor(1, thread_name_prefix=f"ramet program {invocation.name}")
        try:
            return await asyncio.get_running_loop().run_in_executor(own, body)
        finally:
            own.shutdown(wait=False)

    async def _arun_quietly(self) -> None:
        """Never raises but its own cancellation: what went wrong is the run's error."""
        try:
            await self.arun()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._run.end(None, error)

    def _close(self, value: object, error: BaseException | None) -> Steps[None]:
        """The body has ended. Waits for the branches; an error that nobody was told becomes the run's."""
        if self._run.ended:
            return
        wanted: tuple[Variable, ...] | None = None
        if error is None:
            try:
                wanted = self._wanted()
            except ProgramError as missing:
                error = missing
        if error is not None:
            self._execution.cancel(f"{type(error).__name__} in its body")
        self._outline.end("the program has ended")
        self._execution.pieces.release(whole=True, wanted=wanted)
        self._execution.stop_warming()
        yield from self._execution.becoming_quiet()
        self._execution.close()
        errors: list[BaseException] = list(self._execution.undelivered())
        if error is not None:
            if not isinstance(error, ProgramError):
                error.add_note(f"in program {self._invocation.name!r}")
            errors.insert(0, error)
        for further in errors[1:]:
            errors[0].add_note(f"and besides: {further}")
        self._run.end(value, errors[0] if errors else None)

    def _wanted(self) -> tuple[Variable, ...] | None:
        """The variables that the program was compiled for. Raises UnknownVariableError where it made none."""
        outputs = self._invocation.compilation.outputs
        if outputs is None:
            return None
        found = [(name, self._outline.find(name)) for name in outputs]
        for name, variable in found:
            if variable is None:
                raise self._outline.unknown(name)
        return tuple(variable for _, variable in found if variable is not None)

    def _leave(self, _: bool) -> None:
        self._cancel("its stream was left")

    def _leave_at_exit(self) -> None:
        self._cancel("the interpreter exits")

    def _cancel(self, reason: str) -> None:
        if not self._run.ended:
            self._execution.cancel(reason)
            self._run.error()
