import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends import sse
from ramet.lang.backends.sse import EventParser, ServerSentEvent
from ramet.lang.errors import GenerationError

ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LINES = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=8)
EVENTS = st.lists(
    st.tuples(st.none() | st.sampled_from(["delta", "ping"]), st.lists(LINES, min_size=1, max_size=3))
)


def parsed(stream: bytes, cuts: list[int] | None = None) -> list[ServerSentEvent]:
    parser = EventParser()
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts or []), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(bounds)]
    return [event for piece in pieces for event in parser.feed(piece)]


@given(EVENTS, ENDS, st.booleans(), st.lists(st.integers(0, 10_000), max_size=12))
def test_how_it_is_cut_makes_no_difference(
    events: list[tuple[str | None, list[str]]], end: str, comments: bool, cuts: list[int]
) -> None:
    stream = "\ufeff"
    for kind, lines in events:
        stream += f": a comment{end}" * comments
        stream += f"event: {kind}{end}" if kind else ""
        stream += "".join(f"data: {line}{end}" for line in lines) + end
    expected = [ServerSentEvent("\n".join(lines), kind or "message") for kind, lines in events]
    assert parsed(stream.encode(), cuts) == expected
    assert parsed(stream.encode(), list(range(len(stream.encode())))) == expected


def test_fields() -> None:
    stream = (
        b"data:tight\ndata:  two spaces\nid: 7\nretry: 10\nunknown: x\ndata\n\n"
        b"event: alone\n\ndata: last\n\ndata: cut"
    )
    assert parsed(stream) == [ServerSentEvent("tight\n two spaces\n"), ServerSentEvent("last")]


def test_bytes_that_are_no_text() -> None:
    assert parsed(b"data: \xff\n\n") == [ServerSentEvent("\ufffd")]


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_one_line(document: object) -> None:
    event = parsed(f"data: {json.dumps(document)}\n\n".encode())[0]
    assert json.loads(event.data) == document


def test_an_event_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_CHARS", 100)
    parser = EventParser()
    with pytest.raises(GenerationError, match="more than 100 characters"):
        list(map(parser.feed, [b"data: x"] * 200))
