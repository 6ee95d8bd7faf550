"""Ending what is not carried out any more: branches with all below them, and operations with whoever waits."""

from collections import deque
from typing import TYPE_CHECKING

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
)
from ramet.lang.variables import Failure

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch


class Cancelling:
    """Branches that are to end, one after the other. On the loop's thread only.

    The end of one means the end of those below it. They are taken from a list and not ended from within each
    other, so that a program may fork as deep as it likes.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Branch, Failure]] = deque()
        self._is_running = False

    def cancel(self, branch: "Branch", failure: Failure) -> None:
        """When the outermost call returns, all that was cancelled meanwhile has ended."""
        self._pending.append((branch, failure))
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._pending:
                one, its_failure = self._pending.popleft()
                one.end(its_failure)
        finally:
            self._is_running = False


def abandon(operation: Operation, failure: Failure) -> None:
    """Settles whatever waits for the operation. On the loop's thread."""
    match operation:
        case Generate(variable=variable, reasoning=reasoning):
            variable.fail(failure)
            if reasoning is not None:
                reasoning[1].fail(failure)
        case Choose(variable=variable) | CloseScope(variable=variable) | Report(variable=variable):
            variable.fail(failure)
        case Spawn(children):
            for child in children:
                child.cancel(failure.seen_from_outside())
        case EndFeed(feed):
            feed.end(failure)
        case Drop(operations):
            for dropped in operations:
                abandon(dropped, failure)
        case (
            AppendText()
            | AppendValue()
            | AppendImage()
            | BeginRole()
            | EndRole()
            | OpenScope()
            | Concatenate()
            | AwaitPrefix()
            | Prewarm()
        ):
            pass
