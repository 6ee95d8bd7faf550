"""Progress bars on stderr, for loading and for batches, and only where a person can see them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def batch_progress(total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many of ``total`` have finished; shows nothing for a single prompt."""
    if not wanted or total < 2 or not _is_seen():
        yield lambda num_finished: None
        return
    with _bar(f"{{task.completed:.0f}} of {total}") as progress:
        task = progress.add_task("generating", total=total)
        yield lambda num_finished: progress.update(task, completed=num_finished)


@contextmanager
def loading_progress(model: str, *, wanted: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yields a function that is told a phase and its fraction done, 0 to 1; None where nobody would see it."""
    if not wanted or not _is_seen():
        yield None
        return
    with _bar("{task.percentage:>3.0f}%") as progress:
        tasks: dict[str, TaskID] = {}

        def report(phase: str, fraction: float) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(f"{model}: {phase}", total=1.0)
            progress.update(tasks[phase], completed=fraction)

        yield report


def _is_seen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _bar(amount: str) -> "Progress":
    """``amount``: how far a task is, as a format of rich's."""
    # Rich takes 0.1 s to import, which only who sees the bar should pay.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(amount),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
