"""When an engine is taken to hang."""

from ramet.runtime.engine.heartbeat import BEATS, Heartbeat


def test_one_that_is_never_heard_is_lost_after_the_timeout() -> None:
    heart = Heartbeat(8.0)
    now = 100.0
    assert heart.wait_milliseconds(now) == 2001
    asked = []
    while not heart.is_lost:
        now += 0.5
        if heart.is_due(now):
            asked.append(now)
    # The first question opens the time in which it may be answered.
    assert asked == [102.0, 104.0, 106.0, 108.0, 110.0]
    assert now - asked[0] == 8.0


def test_any_sign_of_life_counts() -> None:
    heart = Heartbeat(8.0)
    now = 0.0
    heart.wait_milliseconds(now)
    for _ in range(10 * BEATS):
        now += 2.0
        assert heart.is_due(now)
        assert not heart.is_due(now)
        heart.heard()
        assert not heart.is_lost


def test_a_pause_of_ours_is_one_beat() -> None:
    heart = Heartbeat(8.0)
    heart.wait_milliseconds(0.0)
    assert heart.is_due(1e6)
    assert not heart.is_due(1e6)
    assert not heart.is_lost
    assert heart.wait_milliseconds(1e6) == 2001
    assert heart.wait_milliseconds(1e6 + 50) == 0


def test_without_a_timeout_nothing_is_asked() -> None:
    for timeout in (None, 0.0):
        heart = Heartbeat(timeout)
        assert heart.wait_milliseconds(0.0) is None
        assert not heart.is_due(1e9)
        assert not heart.is_lost
