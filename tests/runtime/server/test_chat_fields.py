"""The parts of a conversation's body that depend on each other."""

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.chat_fields import ChatFields, check_stream_options, output_limit, wanted_logprobs
from ramet.runtime.server.shared_fields import StreamOptions


def test_the_limit_has_two_names() -> None:
    assert output_limit(ChatFields(messages=[])) == (None, "max_tokens")
    assert output_limit(ChatFields(messages=[], max_tokens=3)) == (3, "max_tokens")
    both = ChatFields(messages=[], max_tokens=3, max_completion_tokens=3)
    assert output_limit(both) == (3, "max_completion_tokens")
    with pytest.raises(InvalidRequestError, match="give one of them"):
        output_limit(ChatFields(messages=[], max_tokens=3, max_completion_tokens=4))


def test_logprobs_and_their_alternatives() -> None:
    assert wanted_logprobs(ChatFields(messages=[])) is None
    assert wanted_logprobs(ChatFields(messages=[], logprobs=False, top_logprobs=0)) is None
    assert wanted_logprobs(ChatFields(messages=[], logprobs=True)) == 0
    assert wanted_logprobs(ChatFields(messages=[], logprobs=True, top_logprobs=5)) == 5
    for fields in (
        ChatFields(messages=[], top_logprobs=1),
        ChatFields(messages=[], logprobs=True, top_logprobs=21),
        ChatFields(messages=[], logprobs=True, top_logprobs=-1),
    ):
        with pytest.raises(InvalidRequestError, match="top_logprobs"):
            wanted_logprobs(fields)


def test_stream_options_need_a_stream() -> None:
    check_stream_options(True, StreamOptions())
    check_stream_options(None, None)
    with pytest.raises(InvalidRequestError, match="stream_options"):
        check_stream_options(False, StreamOptions())
