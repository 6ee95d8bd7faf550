"""Heartbeat: tells an engine that is busy from one that hangs."""

BEATS = 4
"""Of a timeout. Several, so that a pause of this process itself (a suspended machine) is one missed beat."""


class Heartbeat:
    """Counts the beats since an engine was last heard of. Has no clock of its own; times are seconds.

    An engine answers between two steps, and outputs are signs of life too, so the timeout is the longest step
    that is still taken for work.
    """

    def __init__(self, timeout: float | None) -> None:
        """``timeout``: None or 0: it is never taken to hang."""
        self._interval = timeout / BEATS if timeout else None
        self._next: float | None = None
        self._missed = 0

    def heard(self) -> None:
        """Anything came from the engine."""
        self._missed = 0

    def wait_milliseconds(self, now: float) -> int | None:
        """How long to wait for the engine before the next ``beat``; None: for ever."""
        if self._interval is None:
            return None
        if self._next is None:
            self._next = now + self._interval
        return max(0, int((self._next - now) * 1000) + 1)

    def is_due(self, now: float) -> bool:
        """Whether the engine is to be asked for a sign of life; asking again counts what was missed."""
        if self._interval is None or self._next is None or now < self._next:
            return False
        self._next = now + self._interval
        self._missed += 1
        return True

    @property
    def is_lost(self) -> bool:
        """Asked as often as the timeout has beats, and never heard."""
        return self._missed > BEATS
