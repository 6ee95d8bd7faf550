"""Summaries travel and come back, and nothing else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.compaction import MAX_SUMMARY_TOKENS, packed, summary_tokens, unpacked


@given(st.text())
def test_a_summary_comes_back(summary: str) -> None:
    sent = packed(summary)
    assert sent.isascii()
    assert unpacked(sent, "x") == summary.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    "content", ["", "gAAAAAB", "ramet-1.", "ramet-1.%%%", "ramet-1.YQ", "ramet-1._w==", "é"]
)
def test_what_is_none_is_refused_by_name(content: str) -> None:
    if content == "ramet-1.":
        assert unpacked(content, "x") == ""
        return
    with pytest.raises(InvalidRequestError, match="no /v1/responses/compact of this server") as raised:
        unpacked(content, "input[3].encrypted_content")
    assert raised.value.field == "input[3].encrypted_content"


def test_it_leaves_room_for_what_follows() -> None:
    assert [summary_tokens(context) for context in (2, 400, 1 << 20)] == [1, 100, MAX_SUMMARY_TOKENS]
