"""Variables are settled once; lists wait for their parts; failures know whether anybody was told."""

import pytest

from ramet.lang import BranchError, GenerationError
from ramet.lang.signals import finish
from ramet.lang.variables import Chunk, Failure, Place, TextFeed, Variable, gathered, known_variable

PLACE = Place("p", "0")


def failure(message: str = "boom") -> Failure:
    return Failure(PLACE.error(GenerationError, message, "x"))


def test_settled_once() -> None:
    variable = Variable("x", PLACE)
    followed: list[int] = []
    variable.then(lambda: followed.append(1))
    variable.add_text("a")
    variable.add_text("")
    variable.finish("a", {"k": 1})
    variable.fail(failure())
    variable.then(lambda: followed.append(2))
    finish(variable.settling())
    assert (variable.value(), variable.meta(), followed) == ("a", {"k": 1}, [1, 2])
    assert list(variable.stream()) == [Chunk("a")]


def test_failures_are_delivered_with_what_they_follow_from() -> None:
    first = failure()
    outside = first.seen_from_outside()
    assert outside.seen_from_outside() is outside
    variable = Variable("y", PLACE)
    variable.fail(outside)
    assert [first.delivered] == [False]
    with pytest.raises(
        BranchError, match=r"a branch failed: boom \(in program 'p', branch '0', variable 'x'\)"
    ):
        variable.value()
    assert first.delivered
    with pytest.raises(BranchError):
        variable.meta()
    with pytest.raises(BranchError):
        list(variable.stream())


def test_gathering_waits_for_all_parts() -> None:
    parts = [Variable("x", PLACE), None, Variable("x", PLACE)]
    whole = gathered("x", PLACE, parts, keep_errors=False)
    assert not whole.settled
    for value, part in enumerate(parts):
        if part is not None:
            part.finish(value, value)
    assert whole.value() == [0, None, 2]
    assert whole.meta() == [0, None, 2]
    assert gathered("x", PLACE, [], keep_errors=False).value() == []


@pytest.mark.parametrize("keep_errors", [False, True])
def test_gathering_a_failed_part(keep_errors: bool) -> None:
    good, bad = known_variable("x", PLACE, "good"), Variable("x", PLACE)
    whole = gathered("x", PLACE, [good, bad], keep_errors=keep_errors)
    cause = failure()
    bad.fail(cause)
    if keep_errors:
        assert whole.value() == ["good", cause.error]
    else:
        with pytest.raises(BranchError):
            whole.value()
    assert cause.delivered


def test_feeds_have_any_number_of_readers() -> None:
    feed = TextFeed()
    feed.add(Chunk("a"))
    feed.add(Chunk("b"))
    feed.end()
    feed.end(failure())
    for _ in range(2):
        assert [chunk.text for chunk in feed] == ["a", "b"]
    assert feed.text == "ab"
