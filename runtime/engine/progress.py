"""Progress bars on stderr, for loading and for batches, and only where a person can see them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def batch_progress(total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many of ``total`` have finished; shows nothing for a single prompt."""
    if not wanted or total < 2 or not _is_seen():
        yield lambda num_finished: None
        return
    with _bar("generating") as progress:
        task = progress.add_task("generating", total=total)
        yield lambda num_finished: progress.update(task, completed=num_finished)


@contextmanager
def loading_progress(model: str, *, wanted: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yields a function that is told a phase and its fraction done, 0 to 1; None where nobody would see it."""
    if not wanted or not _is_seen():
        yield None
        return
    with _bar(f"loading {model}") as progress:
        tasks = {}

        def report(phase: str, fraction: float) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, total=1.0)
            progress.update(tasks[phase], completed=fraction)

        yield report


def _is_seen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(title: str) -> "Progress":
    # Rich takes 0.1 s to import, which only who sees the bar should pay.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn(escape(title)),
        BarColumn(),
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
