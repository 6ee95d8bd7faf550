import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.answer_text import AnswerText, Reading, Wrapping
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import Choice, FinishReason, Regex, SamplingParams

STOP = FinishReason.STOP
End = tuple[str, FinishReason, int | str | None]


def read(pieces: list[str], reading: Reading, end: FinishReason = STOP, stop: str | None = None) -> End:
    text = AnswerText("s", reading)
    shown = ""
    for piece in pieces:
        if text.is_over:
            break
        shown += text.push(piece)
    rest, finish_reason, stop_reason = text.finish(end, stop)
    return shown + rest, finish_reason, stop_reason


PIECES = st.lists(st.sampled_from(["a", "b", "ab", "ba", "c"]), max_size=8)


@given(PIECES, st.booleans())
def test_the_text_up_to_the_first_stop(pieces: list[str], is_wrapped: bool) -> None:
    whole = "".join(pieces)
    reading = Reading(stops=("bab", "cc"))
    if is_wrapped:
        pieces = list(json.dumps({"answer": whole}))
        reading = Reading(wrapping=Wrapping(is_text=True), stops=("bab", "cc"))
    ends = {stop: whole.find(stop) + len(stop) for stop in ("bab", "cc") if stop in whole}
    stop = min(ends, key=lambda one: ends[one], default=None)
    expected = whole if stop is None else whole[: whole.find(stop)]
    assert read(pieces, reading, FinishReason.STOP) == (expected, STOP, stop)


def test_how_it_ended_on_the_server() -> None:
    assert read(["ab"], Reading(), FinishReason.LENGTH) == ("ab", FinishReason.LENGTH, None)
    assert read(["ab"], Reading(), STOP, "x") == ("ab", STOP, "x")
    assert read(["ab"], Reading(stops=("bc",)), FinishReason.LENGTH) == ("ab", FinishReason.LENGTH, None)
    assert read(["a1", "b"], Reading(stop_regexes=("[0-9]",), include_stop=True)) == ("a1", STOP, "[0-9]")


def test_what_is_checked() -> None:
    reading = Reading(grammar=Choice(("ab", "c")))
    assert read(["a", "b"], reading)[0] == "ab"
    with pytest.raises(GenerationError, match="s was held to a constraint, and answered 'a'"):
        read(["a"], reading)
    assert read(["a"], reading, FinishReason.LENGTH)[0] == "a"
    assert read(["a"], reading, STOP, "b")[0] == "a"
    assert read(["a"], Reading(grammar=Choice(("ab",)), may_be_cut=True))[0] == "a"


def test_a_wrapped_answer_is_checked_before_it_is_cut() -> None:
    reading = Reading(wrapping=Wrapping(is_text=True), stops=("b",), grammar=Regex("ab+"))
    assert read(['{"answer": "abb"}'], reading) == ("a", STOP, "b")


@pytest.mark.parametrize("text", ["", '{"answer": "x', "[]", '{"other": 1}'])
def test_an_object_that_is_not_whole(text: str) -> None:
    with pytest.raises(GenerationError, match="is not whole; raise max_tokens"):
        read([text], Reading(wrapping=Wrapping(is_text=True)), FinishReason.LENGTH)


def test_unwrapping() -> None:
    assert Wrapping(is_text=True).unwrapped('{"answer": "é\\n"}') == "é\n"
    assert Wrapping(is_text=False).unwrapped('{"answer": ["é", 1]}') == '["é", 1]'


def test_who_looks_for_which_stops() -> None:
    params = SamplingParams(stop=("a",), stop_regex=("b",), include_stop=True)
    plain = Reading.of(params, None, server_stops=True)
    assert (plain.stops, plain.stop_regexes, plain.may_be_cut) == ((), ("b",), True)
    able = Reading.of(params, None, server_stops=True, server_regexes=True)
    assert (able.stops, able.stop_regexes, able.include_stop) == ((), (), True)
    wrapped = Reading.of(params, Wrapping(is_text=True), server_stops=True, server_regexes=True)
    assert (wrapped.stops, wrapped.stop_regexes, wrapped.may_be_cut) == (("a",), ("b",), False)
