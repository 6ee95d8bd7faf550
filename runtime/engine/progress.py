"""A progress bar for batches, on stderr, and only where a person can see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def batch_progress(total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many of ``total`` have finished.

    Nothing is shown for a single prompt, or where stderr is no terminal.
    """
    if not wanted or total < 2 or sys.stderr is None or not sys.stderr.isatty():
        yield lambda num_finished: None
        return
    # Rich takes 0.1 s to import, which only who sees the bar should pay.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda num_finished: progress.update(task, completed=num_finished)
