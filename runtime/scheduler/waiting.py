"""WaitingQueue: who waits, by priority and age, and the bound on overtaking."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from ramet.runtime.scheduler.policy import OrderingPolicy
from ramet.runtime.scheduler.request import Request


class _PriorityClass:
    """The waiting requests of one priority."""

    __slots__ = ("fresh", "preempted")

    def __init__(self) -> None:
        # Linked, so that taking away the oldest or any other one is O(1), however many have left before it.
        self.fresh: OrderedDict[str, Request] = OrderedDict()
        """Never admitted yet, oldest first."""
        self.preempted: list[Request] = []
        """By age; they were admitted before, and resume before any fresh one."""


class WaitingQueue:
    """Higher priorities first; within a priority preempted requests by age, then the others as a policy says.

    The bound: of the requests of its own priority that arrived later, at most ``max_overtakes`` are admitted
    (for the first time) before a request. One that has been overtaken that often is urgent: urgent requests
    are admitted in the order of their arrival, and before all others of their priority. That holds under
    every policy. It is counted at admissions, so it does not depend on how long a request waits, and there is
    no bound across priorities.

    Adding and removing cost O(1) (O(preempted) for preempted ones), an admission O(window).
    """

    def __init__(self, max_overtakes: int) -> None:
        self._max_overtakes = max_overtakes
        self._classes: dict[int, _PriorityClass] = {}
        self._priorities: list[int] = []
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        for priority in reversed(self._priorities):
            yield from self._classes[priority].preempted
            yield from self._classes[priority].fresh.values()

    @property
    def top_priority(self) -> int | None:
        """The highest priority that waits; None where nothing does."""
        return self._priorities[-1] if self._priorities else None

    def num_fresh(self, priority: int) -> int:
        """Requests of this priority that were never admitted."""
        group = self._classes.get(priority)
        return 0 if group is None else len(group.fresh)

    def add(self, request: Request) -> None:
        """A request that has just arrived: the youngest of its priority."""
        self._class_of(request.priority).fresh[request.request_id] = request
        self._num_requests += 1

    def add_preempted(self, request: Request) -> None:
        """A request that ran already: ahead of those of its priority that never did."""
        insort(self._class_of(request.priority).preempted, request, key=lambda waiting: waiting.sequence)
        self._num_requests += 1

    def remove(self, request: Request) -> None:
        """It will not be admitted any more."""
        group = self._classes[request.priority]
        if group.fresh.pop(request.request_id, None) is None:
            group.preempted.remove(request)
        self._num_requests -= 1
        if not group.fresh and not group.preempted:
            del self._classes[request.priority]
            self._priorities.remove(request.priority)

    def admit(self, request: Request) -> None:
        """It starts to run: the older ones that have never run are overtaken."""
        group = self._classes[request.priority]
        if request.request_id in group.fresh:
            for older in group.fresh.values():
                if older is request:
                    break
                older.num_overtaken += 1
        self.remove(request)

    def candidates(self, policy: OrderingPolicy, prefix_length: Callable[[Request], int]) -> Iterator[Request]:
        """Whom to admit next, again and again. The caller admits each one before it asks for the next."""
        while self._priorities:
            group = self._classes[self._priorities[-1]]
            while group.preempted:
                yield group.preempted[0]
            window = list(islice(group.fresh.values(), policy.window))
            for request in policy.order(window, prefix_length):
                yield from self._urgent(group)
                if request.request_id in group.fresh:
                    yield request

    def _urgent(self, group: _PriorityClass) -> Iterator[Request]:
        # An older request was overtaken at least as often as a younger one, so the oldest is urgent first.
        while group.fresh:
            oldest = next(iter(group.fresh.values()))
            if oldest.num_overtaken < self._max_overtakes:
                return
            yield oldest

    def _class_of(self, priority: int) -> _PriorityClass:
        group = self._classes.get(priority)
        if group is None:
            group = self._classes[priority] = _PriorityClass()
            insort(self._priorities, priority)
        return group
