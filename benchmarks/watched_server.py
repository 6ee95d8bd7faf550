"""``ramet serve``, with a look inside: on SIGUSR1 it writes how many tasks, threads and objects it has.

    python -P benchmarks/watched_server.py REPORT serve --model smollm2

It is run by its path, with -P, so that no module of this folder stands in front of others.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from functools import partial
from types import FrameType

from ramet.runtime.cli import main


def write_report(path: str, _signal: int, _frame: FrameType | None) -> None:
    """A signal handler. It runs on the main thread, which is the event loop's; REPORT is replaced at once."""
    gc.collect()
    try:
        num_tasks = len(asyncio.all_tasks())
    except RuntimeError:
        # The loop does not run yet, or not any more.
        num_tasks = 0
    counts = {"tasks": num_tasks, "threads": threading.active_count(), "objects": len(gc.get_objects())}
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(counts, file)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, partial(write_report, sys.argv.pop(1)))
    main()
