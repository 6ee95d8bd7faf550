"""Prompts that are refused before they are tokenised."""

import pytest

from ramet.runtime.protocol import PromptTooLongError
from ramet.runtime.server.prompt_size import PromptSize
from ramet.runtime.tokenizer import ByteTokenizer
from tests.runtime.server.speaking_server import Served, error_of


def test_what_may_fit_is_let_through() -> None:
    size = PromptSize(ByteTokenizer(), 100)
    size.check("x" * 200, "prompt")
    size.check([{"content": "x" * 100}, {"content": ["x" * 50, {"text": "x" * 50}]}, None, 5], "messages")
    size.check([1] * 10_000, "prompt")
    with pytest.raises(PromptTooLongError, match="201 characters"):
        size.check("x" * 201, "prompt")
    with pytest.raises(PromptTooLongError) as caught:
        size.check([{"content": "x" * 150}, {"content": [{"text": "x" * 51}]}], "messages")
    assert caught.value.field == "messages"


def test_every_route_that_tokenises_refuses_what_is_too_long(server: Served) -> None:
    text = "x" * 5_000_000
    for path, body in {
        "/v1/completions": {"prompt": ["a", text]},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        "/generate": {"input": {"text": text}},
        "/score": {"input": {"messages": [{"role": "user", "content": text}]}, "continuations": ["a"]},
        "/tokenize": {"text": text},
        "/encode_chat": {"messages": [{"role": "user", "content": text}]},
    }.items():
        error = error_of(server.post(path, body), 400)
        assert error["code"] in ("context_length_exceeded", "prompt_too_long")
        assert "characters" in error["message"]
