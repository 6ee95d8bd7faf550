"""What happened, second by second."""

from ramet.runtime.protocol import RequestStats
from ramet.runtime.server.activity import HISTORY_SECONDS, Activity


class Clock:
    def __init__(self) -> None:
        self.now = 1000.25

    def __call__(self) -> float:
        return self.now


def test_what_happens_in_one_second_is_counted_together() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.first_token(0.5)
    activity.first_token(0.25)
    activity.tokens(3)
    clock.now += 1
    activity.tokens(2)
    activity.finished(RequestStats(num_prompt_tokens=10, num_cached_tokens=4))
    first, second = activity.history()
    assert (first.time, first.num_first_tokens, first.ttft_sum, first.num_output_tokens) == (1000, 2, 0.75, 3)
    assert (second.time, second.num_finished, second.num_output_tokens) == (1001, 1, 2)
    assert (second.num_prompt_tokens, second.num_cached_tokens) == (10, 4)


def test_what_is_old_is_forgotten() -> None:
    clock = Clock()
    activity = Activity(clock)
    for _ in range(2 * HISTORY_SECONDS):
        activity.tokens(1)
        clock.now += 1
    assert len(activity.history()) == HISTORY_SECONDS
    clock.now += HISTORY_SECONDS + 1
    assert activity.history() == []


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.tokens(1)
    clock.now -= 100
    activity.tokens(1)
    assert [second.num_output_tokens for second in activity.history()] == [2]
