"""What a server did lately, second by second: the page's charts are drawn from it."""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from ramet.runtime.protocol import RequestStats

HISTORY_SECONDS = 300


class Second(msgspec.Struct, array_like=True):
    """What happened in one second, all tenants together."""

    time: int
    """Unix time."""
    num_finished: int = 0
    num_first_tokens: int = 0
    ttft_sum: float = 0.0
    """Seconds from arrival to first token, of those whose first token came."""
    num_output_tokens: int = 0
    num_prompt_tokens: int = 0
    """Of the answers that finished."""
    num_cached_tokens: int = 0
    """Those of them that came from the radix cache."""


class Activity:
    """The last ``HISTORY_SECONDS``. Lives on one event loop. Seconds in which nothing happened take no room."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)

    def first_token(self, seconds: float) -> None:
        """``seconds``: since the request's arrival."""
        now = self._now()
        now.num_first_tokens += 1
        now.ttft_sum += seconds

    def tokens(self, num_tokens: int) -> None:
        self._now().num_output_tokens += num_tokens

    def finished(self, stats: RequestStats) -> None:
        now = self._now()
        now.num_finished += 1
        now.num_prompt_tokens += stats.num_prompt_tokens
        now.num_cached_tokens += stats.num_cached_tokens

    def history(self) -> list[Second]:
        """Oldest first; valid until the next event."""
        oldest = int(self._clock()) - HISTORY_SECONDS
        return [second for second in self._seconds if second.time >= oldest]

    def _now(self) -> Second:
        now = int(self._clock())
        # A clock that was set back adds to the latest second.
        if not self._seconds or self._seconds[-1].time < now:
            self._seconds.append(Second(now))
        return self._seconds[-1]
