"""Splitting reasoning from answers does not depend on how the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.reasoning import FORMATS, ReasoningFormat, ReasoningSplitter, reasoning_format

MARKED = ReasoningFormat("<think>", "</think>")
INSIDE = ReasoningFormat("<think>", "</think>", begins_inside=True)


def split(format: ReasoningFormat, *chunks: str) -> tuple[str, str]:
    splitter = ReasoningSplitter(format)
    parts = [splitter.feed(chunk) for chunk in chunks] + [splitter.finish()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        (MARKED, "<think>\nwhy\n</think>\n\nso ", ("why", "so ")),
        (MARKED, "  <think>a </b> </think>c</think>", ("a </b>", "c</think>")),
        (MARKED, " plain <think>x</think>", ("", " plain <think>x</think>")),
        (MARKED, "<think></think>", ("", "")),
        (MARKED, "<think>never ends ", ("never ends", "")),
        (MARKED, "<thi", ("", "<thi")),
        (MARKED, "", ("", "")),
        (INSIDE, "why\n</think>\nso", ("why", "so")),
        (INSIDE, "<think> why </think> so", ("why", "so")),
        (INSIDE, "<thi", ("<thi", "")),
        (INSIDE, " \n</think> so", ("", "so")),
    ],
)
def test_split(format: ReasoningFormat, text: str, expected: tuple[str, str]) -> None:
    assert split(format, text) == expected
    assert split(format, *text) == expected


pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "</", "think>", "a", " ", "\n", "word", "<think"]), max_size=12
)


@given(pieces, st.booleans(), st.data())
def test_the_cuts_do_not_matter(pieces: list[str], inside: bool, data: st.DataObject) -> None:
    format = INSIDE if inside else MARKED
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(format, *chunks) == split(format, text)


def test_reasoning_that_was_told_apart_already() -> None:
    splitter = ReasoningSplitter(INSIDE)
    splitter.leave_out()
    assert splitter.feed(" \n") == ("", "")
    assert splitter.feed("so ") == ("", "so ")
    splitter.leave_out()
    assert splitter.feed("</think>") == ("", "</think>")
    assert splitter.finish() == ("", "")


def test_formats_by_name() -> None:
    assert reasoning_format("qwen3") == MARKED
    assert FORMATS["deepseek-r1"].begins_inside
    with pytest.raises(InvalidRequestError, match="model_type is 'gpt'; it must be one of deepseek-r1, "):
        reasoning_format("gpt")
