"""Many runs of one program: so many at a time, their results in the order of their arguments."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ramet.lang.compiler.hoist import PrefixGate
from ramet.lang.compiler.shared_calls import SharedCalls
from ramet.lang.interpreter import Common
from ramet.lang.loop_thread import Started, bodies_loop, branches_loop, outcome_of
from ramet.lang.progress import batch_progress
from ramet.lang.session import Invocation, Session
from ramet.lang.state import ProgramState

DEFAULT_PARALLEL = 128
"""Programs in flight. The body of one takes a thread while it runs, if it is no coroutine."""

OnEnd = Callable[[int, ProgramState], None]


@dataclass(frozen=True, slots=True)
class Batch:
    """Programs to be run together.

    The first that fails ends the batch: its error is raised, with its index in a note, and the others are
    cancelled. With ``return_errors`` none does, and each state has its own error.
    """

    name: str
    invocations: Sequence[Invocation]
    parallel: int
    return_errors: bool
    progress_bar: bool

    def run(self) -> list[ProgramState]:
        return bodies_loop().run(self.arun())

    async def arun(self, on_end: OnEnd | None = None) -> list[ProgramState]:
        if not self.invocations:
            return []
        common = self._common()
        limit = asyncio.Semaphore(self.parallel)
        executor = ThreadPoolExecutor(
            min(self.parallel, len(self.invocations)), thread_name_prefix=f"ramet batch {self.name}"
        )
        with batch_progress(self.name, len(self.invocations), wanted=self.progress_bar) as advance:

            async def run_one(index: int) -> ProgramState:
                async with limit:
                    state = await self._run_one(index, executor, common)
                advance()
                if on_end is not None:
                    on_end(index, state)
                return state

            tasks = [asyncio.create_task(run_one(index)) for index in range(len(self.invocations))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                # Once and not again: a second cancellation would break off the first one's clearing up.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                executor.shutdown(wait=False)
                if common.gate is not None:
                    branches_loop().call(common.gate.close)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return [task.result() for task in tasks]

    def iterate(self) -> Iterator[ProgramState]:
        """The states in order, each as soon as it is there. Closing the iterator cancels the rest."""
        outcomes: list[Future[ProgramState]] = [Future() for _ in self.invocations]
        states = self.arun(lambda index, state: outcomes[index].set_result(state))
        started = Started(bodies_loop(), states)
        started.outcome.add_done_callback(lambda whole: _fail_the_rest(outcomes, whole))
        try:
            started.start()
            for outcome in outcomes:
                yield outcome_of(outcome)
        finally:
            started.cancel()

    def _common(self) -> Common:
        """What the runs share: one backend serves them all."""
        first = self.invocations[0]
        backend = first.backend
        share = (
            backend.capabilities.hoists
            and min(self.parallel, len(self.invocations)) > 1
            and all(one.cache_salt == first.cache_salt for one in self.invocations)
        )
        return Common(
            SharedCalls(backend.capabilities), PrefixGate(backend, first.cache_salt) if share else None
        )

    async def _run_one(self, index: int, executor: ThreadPoolExecutor, common: Common) -> ProgramState:
        session = Session(self.invocations[index], common)
        try:
            return await session.arun(executor)
        except Exception as error:
            if self.return_errors:
                return session.outside
            error.add_note(f"in item {index} of the batch")
            raise


def _fail_the_rest(outcomes: list["Future[ProgramState]"], whole: "Future[list[ProgramState]]") -> None:
    error = whole.exception()
    for outcome in outcomes:
        if error is not None and not outcome.done():
            outcome.set_exception(error)
