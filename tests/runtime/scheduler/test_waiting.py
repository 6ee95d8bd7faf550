"""WaitingQueue: priorities, preempted requests first, and the bound on overtaking under any policy."""

from collections.abc import Callable, Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.scheduler import Fcfs, LongestPrefixMatch, OrderingPolicy, Request
from ramet.runtime.scheduler.waiting import WaitingQueue
from tests.runtime.scheduler.fakes import make_input


class Youngest:
    """The most unfair order."""

    def __init__(self, window: int) -> None:
        self.window = window

    def order(self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]) -> Sequence[Request]:
        return list(reversed(waiting))


def _request(sequence: int, priority: int = 0) -> Request:
    request = Request.from_input(make_input(f"r{sequence}", [1], priority=priority), arrival=sequence)
    request.sequence = sequence
    return request


def _admit(queue: WaitingQueue, policy: OrderingPolicy, count: int) -> list[str]:
    admitted: list[str] = []
    for request in queue.candidates(policy, lambda request: 0):
        if len(admitted) == count:
            break
        queue.admit(request)
        admitted.append(request.request_id)
    return admitted


def test_higher_priorities_go_first_then_age() -> None:
    queue = WaitingQueue(max_overtakes=64)
    for sequence, priority in enumerate([0, -1, 5, 0, 5]):
        queue.add(_request(sequence, priority))
    assert (queue.top_priority, queue.num_fresh(5), queue.num_fresh(3), len(queue)) == (5, 2, 0, 5)
    assert [request.request_id for request in queue] == ["r2", "r4", "r0", "r3", "r1"]
    assert _admit(queue, Fcfs(), 9) == ["r2", "r4", "r0", "r3", "r1"]
    assert (len(queue), queue.top_priority) == (0, None)


def test_preempted_requests_resume_first_by_age_and_overtake_nobody() -> None:
    queue = WaitingQueue(max_overtakes=0)
    old = _request(0)
    queue.add(old)
    for sequence in (7, 5):
        queue.add_preempted(_request(sequence))
    assert _admit(queue, Fcfs(), 2) == ["r5", "r7"]
    assert old.num_overtaken == 0
    assert _admit(queue, Fcfs(), 9) == ["r0"]


def test_removing_takes_from_either_kind() -> None:
    queue = WaitingQueue(max_overtakes=1)
    fresh, preempted = _request(0), _request(1)
    queue.add(fresh)
    queue.add_preempted(preempted)
    queue.remove(fresh)
    assert list(queue) == [preempted]
    queue.remove(preempted)
    assert len(queue) == 0


def test_an_urgent_request_is_overtaken_by_nobody() -> None:
    queue = WaitingQueue(max_overtakes=2)
    for sequence in range(6):
        queue.add(_request(sequence))
    assert _admit(queue, Youngest(window=9), 6) == ["r5", "r4", "r0", "r1", "r2", "r3"]


def test_without_overtaking_every_policy_is_first_come_first_served() -> None:
    queue = WaitingQueue(max_overtakes=0)
    for sequence in range(6):
        queue.add(_request(sequence))
    assert _admit(queue, Youngest(window=9), 6) == [f"r{sequence}" for sequence in range(6)]


@given(
    st.lists(
        st.one_of(st.tuples(st.just("add"), st.integers(0, 1)), st.just("admit"), st.just("remove")),
        max_size=120,
    ),
    st.integers(0, 5),
    st.integers(1, 9),
    st.integers(0, 1000),
)
def test_no_request_is_overtaken_more_often_than_the_bound(
    operations: list[tuple[str, int] | str], max_overtakes: int, window: int, seed: int
) -> None:
    """Counted apart from the queue: younger requests of the same priority that are admitted first."""
    rng = Random(seed)

    class Any:
        def __init__(self) -> None:
            self.window = window

        def order(
            self, waiting: Sequence[Request], prefix_length: Callable[[Request], int]
        ) -> Sequence[Request]:
            return rng.sample(list(waiting), len(waiting))

    queue = WaitingQueue(max_overtakes)
    waiting: list[Request] = []
    overtaken: dict[str, int] = {}
    sequence = 0
    for operation in operations:
        if isinstance(operation, tuple):
            request = _request(sequence, operation[1])
            sequence += 1
            queue.add(request)
            waiting.append(request)
            overtaken[request.request_id] = 0
        elif operation == "admit":
            for request in queue.candidates(Any(), lambda request: 0):
                assert request.priority == max(other.priority for other in waiting)
                queue.admit(request)
                waiting.remove(request)
                for other in waiting:
                    if other.priority == request.priority and other.sequence < request.sequence:
                        overtaken[other.request_id] += 1
                if rng.random() < 0.5:
                    break
        elif waiting:
            request = rng.choice(waiting)
            queue.remove(request)
            waiting.remove(request)
        assert len(queue) == len(waiting)
        for request in waiting:
            assert request.num_overtaken == overtaken[request.request_id] <= max_overtakes


def test_the_window_looks_at_the_oldest_only() -> None:
    queue = WaitingQueue(max_overtakes=64)
    for sequence in range(10_000):
        queue.add(_request(sequence))
    asked: list[str] = []

    def prefix_length(request: Request) -> int:
        asked.append(request.request_id)
        return 0

    policy = LongestPrefixMatch(window=16)
    assert next(queue.candidates(policy, prefix_length)).request_id == "r0"
    assert asked == [f"r{sequence}" for sequence in range(16)]
