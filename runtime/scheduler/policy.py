"""In which order waiting requests of one priority are admitted."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ramet.runtime.scheduler.request import Request


class OrderingPolicy(Protocol):
    """Ranks waiting requests. It does not decide who may wait for ever: ``WaitingQueue`` bounds overtaking
    under every policy."""

    @property
    def window(self) -> int:
        """How many of the oldest waiting requests it looks at; at least 1."""
        ...

    def order(self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]) -> Sequence[Request]:
        """``waiting``, oldest first, in the order in which to admit.

        ``prefix_length`` tells how many tokens of a request the cache holds now; it costs a walk of the tree
        along the part that was not there at the last call. Each request carries its ``tag``.
        """
        ...


class Fcfs:
    """First come, first served."""

    @property
    def window(self) -> int:
        return 1

    def order(self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]) -> Sequence[Request]:
        return waiting


class LongestPrefixMatch:
    """Those first of whose tokens the most are cached, ties by age (RadixAttention, arXiv 2312.07104, sec. 3).

    So what is in the cache is used before it is evicted. It looks at a window of the oldest requests: beyond
    that many, order hardly raises the hit rate further, and the cost of a step must not grow with the queue.
    """

    def __init__(self, window: int = 256) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least 1")
        self._window = window

    @property
    def window(self) -> int:
        return self._window

    def order(self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]) -> Sequence[Request]:
        if len(waiting) < 2:
            return waiting
        return sorted(waiting, key=prefix_length, reverse=True)
