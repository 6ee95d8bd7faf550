"""How long a schema may be planned before it is left to a process that can be ended."""

import time
from collections.abc import Callable

_EVERY = 4
"""Looks at the clock once in so many checks: most are microseconds apart."""


class OverdueError(Exception):
    """Planning takes longer than it was given. Says nothing of the schema but that."""


class Pace:
    """A bound of the CPU time of one thread, which is the one that makes it. Mutable: counts its checks."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        """``seconds``: None for no bound."""
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._num_checks = 0

    def check(self) -> None:
        """Raises OverdueError behind the end."""
        if self._end is None:
            return
        self._num_checks += 1
        if self._num_checks % _EVERY == 0 and self._clock() > self._end:
            raise OverdueError
