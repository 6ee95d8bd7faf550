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
    size.check([1] * 800, "prompt")
    with pytest.raises(PromptTooLongError, match="201 characters"):
        size.check("x" * 201, "prompt")
    with pytest.raises(PromptTooLongError) as caught:
        size.check([{"content": "x" * 150}, {"content": [{"text": "x" * 51}]}], "messages")
    assert caught.value.field == "messages"


def test_what_says_nothing_counts_as_well() -> None:
    size = PromptSize(ByteTokenizer(), 100)
    many: object
    for many in ([1] * 801, [{"type": "text", "text": ""}] * 400, {"enum": [[]] * 801}, [[{"a": 1}] * 500]):
        with pytest.raises(PromptTooLongError, match="more than 800 entries"):
            size.check(many, "messages")
    size.check_turns([{}] * 100, "messages")
    with pytest.raises(PromptTooLongError, match="messages has 101 entries"):
        size.check_turns([{}] * 101, "messages")


def test_every_route_refuses_what_has_too_many_entries(server: Served) -> None:
    messages = [{"role": "user", "content": ""}] * 300_000
    parts = [{"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}]
    for path, body in {
        "/v1/completions": {"prompt": [65] * 100_000},
        "/v1/chat/completions": {"messages": messages},
        "/v1/responses": {"input": messages},
        "/v1/messages": {"messages": messages, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": parts},
        "/generate": {"input": {"token_ids": [65] * 100_000}},
        "/score": {"input": {"messages": parts}, "continuations": ["a"]},
        "/encode_chat": {"messages": messages},
        "/detokenize": {"token_ids": [65] * 100_000},
    }.items():
        response = server.post(path, body)
        assert response.status_code == 400, (path, response.text)
        assert " entries" in response.text, (path, response.text)
    error = error_of(server.post("/v1/completions", {"prompt": ["a"] * 100_000}), 400)
    assert error["code"] == "too_many_answers"


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
