"""Text completions over HTTP: prompts in every form, echo, log probabilities, batches, and what is refused."""

from typing import Any

import httpx
import pytest

from tests.runtime.server.speaking_server import Served, error_of, events


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


def test_prompts_in_every_form(server: Served) -> None:
    ids = list(b"say:ids")
    assert texts(server.complete("say:text")) == ["text"]
    assert texts(server.complete(ids)) == ["ids"]
    assert texts(server.complete(["say:a", "say:b"])) == ["a", "b"]
    assert texts(server.complete([ids, list(b"say:two")])) == ["ids", "two"]
    assert texts(server.complete(["say:a", ids])) == ["a", "ids"]
    answer = server.complete(["say:a", "say:bc"], n=2).json()
    assert [choice["text"] for choice in answer["choices"]] == ["a", "a", "bc", "bc"]
    assert answer["usage"]["prompt_tokens"] == len("say:asay:bc")
    assert answer["usage"]["completion_tokens"] == 2 * (2 + 3)
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")


def test_sixteen_tokens_unless_told(server: Served) -> None:
    answer = server.complete("say:" + "x" * 40).json()
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["say:héllo", list(b"say:h\xc3\xa9llo")])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_echo_and_logprobs_in_all_combinations(server: Served, prompt: Any, logprobs: int | None) -> None:
    for echo in (False, True):
        fields: dict[str, Any] = {"echo": echo, "logprobs": logprobs, "n": 2, "max_tokens": 30}
        whole = server.complete(prompt, **fields).json()["choices"]
        streamed = events(server.complete(prompt, **fields, stream=True))
        for choice in whole:
            assert choice["text"] == ("say:héllo" if echo else "") + "héllo"
            parts = [c for chunk in streamed for c in chunk["choices"] if c["index"] == choice["index"]]
            assert "".join(part["text"] for part in parts) == choice["text"]
            assert (parts[-1]["text"], parts[-1]["finish_reason"]) == ("", "stop")
            if logprobs is None:
                assert choice["logprobs"] is None
                continue
            assert len(choice["logprobs"]["tokens"]) == (10 if echo else 0) + 6
            assert (choice["logprobs"]["token_logprobs"][0] is None) == echo
            for name, values in choice["logprobs"].items():
                assert [v for part in parts if part["logprobs"] for v in part["logprobs"][name]] == values


def test_scoring_a_prompt_generates_nothing(server: Served) -> None:
    answer = server.complete("say:abc", max_tokens=0, echo=True, logprobs=1).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("say:abc", "length")
    assert choice["logprobs"]["tokens"] == list("say:abc")
    assert choice["logprobs"]["text_offset"] == list(range(7))
    assert (answer["usage"]["completion_tokens"], answer["usage"]["total_tokens"]) == (0, 7)


def test_usage_at_the_end_of_a_stream(server: Served) -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(server.complete(["say:a", "say:b"], **fields))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 10)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x" * 3000}, "prompt"),
        ({"prompt": ["ok", "x" * 3000]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 101}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"n": 2000}, "n"),
        ({"n": 1000, "prompt": ["a", "b"]}, "n"),
    ],
)
def test_what_is_refused(server: Served, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": "say:x", **fields}
    for stream in (False, True):
        error = error_of(server.post("/v1/completions", {**body, "stream": stream}), 400)
        assert error["param"] == param


def test_a_prompt_is_needed(server: Served) -> None:
    assert error_of(server.post("/v1/completions", {}), 400)["code"] == "missing_required_parameter"


def test_a_masked_alternative_is_a_number(server: Served) -> None:
    answer = server.complete("x", choice=["yes", "no"], logprobs=2)
    assert "Infinity" not in answer.text
    assert texts(answer)[0] in ("yes", "no")
