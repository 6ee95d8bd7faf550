"""Reading what a branch has said: what waits for it, written once for threads and for coroutines."""

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from ramet.lang.errors import ProgramCancelledError, ProgramError
from ramet.lang.operations import EndFeed, Report
from ramet.lang.outline import Outline
from ramet.lang.signals import Signal, Steps
from ramet.lang.variables import TextFeed, Variable

logger = logging.getLogger(__name__)


class Run:
    """How a run of a program ended. Thread-safe."""

    def __init__(self) -> None:
        self.return_value: object = None
        self._error: BaseException | None = None
        self._error_told = False
        self._told: list[BaseException] = []
        self._ended = False
        self._signal = Signal()

    @property
    def ended(self) -> bool:
        return self._ended

    def end(self, return_value: object, error: BaseException | None) -> None:
        """Ending twice changes nothing."""
        if not self._ended:
            self.return_value, self._error = return_value, error
            self._ended = True
            self._signal.notify()

    def ending(self) -> Steps[None]:
        yield self._signal, lambda: self._ended

    def error(self) -> BaseException | None:
        """For whoever is about to see it, or does not want to."""
        self._error_told = True
        return self._error

    def raise_error(self) -> None:
        if (error := self.error()) is not None:
            raise error

    def told(self, error: BaseException) -> None:
        """Somebody sees this error, with what it follows from. It may be the run's, or become it."""
        cause: BaseException | None = error
        while cause is not None and cause not in self._told:
            self._told.append(cause)
            cause = cause.__cause__

    def __del__(self) -> None:
        # Only a stream that nobody read to its end gets here untold.
        if self._error is not None and not self._error_told and self._error not in self._told:
            logger.error("a program failed and nobody asked: %r", self._error)


class Reader:
    """Of the program itself: what there is not yet, and nothing will make, is an error at once."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline

    def of(self, outline: Outline) -> "Reader":
        """The same for another branch of the run."""
        return Reader(outline)

    def variable(self, name: str) -> Steps[Variable]:
        """Raises UnknownVariableError."""
        yield from ()
        variable = self._outline.find(name)
        if variable is None:
            raise self._outline.unknown(name)
        self._outline.branch.execution.pieces.release(waits=not variable.settled)
        return variable

    def value(self, name: str) -> Steps[object]:
        variable = yield from self.variable(name)
        yield from variable.settling()
        return variable.value()

    def meta(self, name: str) -> Steps[object]:
        variable = yield from self.variable(name)
        yield from variable.settling()
        return variable.meta()

    def report(self, what: str) -> Steps[Any]:
        """The branch's "text" or "messages" after all that was said so far; "nothing" only waits for that."""
        report = self._reported(what)
        yield from report.settling()
        return report.value()

    def error(self) -> Steps[BaseException | None]:
        report = self._reported("nothing")
        yield from report.settling()
        return None if report.failure is None else report.failure.deliver()

    def feed(self) -> TextFeed:
        """The branch's text as far as it has been asked for."""
        feed = TextFeed()
        branch = self._outline.branch
        branch.watch(feed)
        self._outline.submit(EndFeed(feed))
        branch.execution.pieces.release()
        return feed

    def after_stream(self) -> Steps[None]:
        """What to do when a stream of the branch's text has ended well."""
        yield from ()

    def failing(self, error: ProgramError) -> Steps[NoReturn]:
        """Raises what whoever reads is to see where ``error`` is what there is instead of a value or a text."""
        yield from ()
        raise error

    def _reported(self, what: str) -> Variable:
        variable = Variable(None, self._outline.place, streams=False)
        self._outline.submit(Report(variable, what))
        self._outline.branch.execution.pieces.release()
        return variable


class OutsideReader(Reader):
    """Of whoever holds a run from outside: it waits for what the program may still say."""

    def __init__(self, outline: Outline, run: Run) -> None:
        super().__init__(outline)
        self._run = run

    def variable(self, name: str) -> Steps[Variable]:
        outline = self._outline
        yield outline.changed, lambda: outline.find(name) is not None or outline.ended
        variable = outline.find(name)
        if variable is not None:
            return variable
        yield from self._run.ending()
        self._run.raise_error()
        raise outline.unknown(name)

    def value(self, name: str) -> Steps[object]:
        variable = yield from self.variable(name)
        yield from variable.settling()
        return (yield from self._of_settled(variable.value))

    def meta(self, name: str) -> Steps[object]:
        variable = yield from self.variable(name)
        yield from variable.settling()
        return (yield from self._of_settled(variable.meta))

    def _of_settled(self, read: Callable[[], object]) -> Steps[object]:
        try:
            return read()
        except ProgramError as error:
            return (yield from self.failing(error))

    def report(self, what: str) -> Steps[Any]:
        """After the run's end. Of a run that failed: what it had said."""
        branch = self._outline.branch
        if what == "nothing":
            if (error := (yield from self.error())) is not None:
                raise error
            return None
        yield from self._run.ending()
        report = Report(Variable(None, self._outline.place, streams=False), what)
        branch.execution.thread.call(branch.report, report)
        yield from report.variable.settling()
        return report.variable.value()

    def error(self) -> Steps[BaseException | None]:
        yield from self._run.ending()
        if (error := self._run.error()) is not None:
            return error
        failure = self._outline.branch.failure
        return None if failure is None else failure.deliver()

    def feed(self) -> TextFeed:
        """The branch's text to its end."""
        feed = TextFeed()
        branch = self._outline.branch
        branch.watch(feed)
        self._outline.when_ended(lambda: branch.submit(EndFeed(feed)))
        return feed

    def after_stream(self) -> Steps[None]:
        yield from self._run.ending()
        self._run.raise_error()

    def failing(self, error: ProgramError) -> Steps[NoReturn]:
        self._run.told(error)
        if isinstance(error, ProgramCancelledError):
            # Cancelled, because something in the program was raised: that is what to tell.
            yield from self._run.ending()
            if isinstance(self._run.error(), Exception):
                self._run.raise_error()
        raise error
