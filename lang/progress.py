"""A progress bar on stderr, where a person can see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def batch_progress(name: str, total: int, *, wanted: bool) -> Iterator[Callable[[], None]]:
    """Yields what is to be called for each of ``total`` that has ended. Shows nothing but on a terminal."""
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    # Rich takes 0.1 s to import, which only who sees the bar should pay.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda: progress.advance(task)
