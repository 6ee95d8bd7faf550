"""Options as people write them, SGLang's words for some included, and the SamplingParams that they become."""

from typing import Any

import pytest

from ramet.lang.options import Sampling, sampling
from ramet.runtime.protocol import InvalidRequestError, SamplingParams


def fields(options: dict[str, Any]) -> dict[str, Any]:
    made = sampling(options)
    return {field: getattr(made.params, field) for field in made.given}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"return_logprob": True}, {"logprobs": 0}),
        ({"return_logprob": False}, {}),
        ({"return_logprob": False, "top_logprobs_num": 0, "logprob_start_len": -1}, {}),
        ({"top_logprobs_num": 3}, {"logprobs": 3}),
        ({"return_logprob": True, "logprob_start_len": -1}, {"logprobs": 0}),
        (
            {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 5},
            {"logprobs": 2, "prompt_logprobs": 2, "prompt_logprobs_start": 5},
        ),
        ({"return_logprob": True, "logprobs": 4}, {"logprobs": 4}),
        ({"return_text_in_logprobs": False}, {}),
        ({"stop": "a", "stop_regex": ["b", "c"]}, {"stop": ("a",), "stop_regex": ("b", "c")}),
        ({"max_tokens": None}, {"max_tokens": None}),
    ],
)
def test_what_options_become(options: dict[str, Any], expected: dict[str, Any]) -> None:
    assert fields(options) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"return_text_in_logprobs": True}, "decode the ids"),
        ({"return_logprob": False, "top_logprobs_num": 2}, "return_logprob is False"),
        ({"top_logprobs_num": "2"}, "top_logprobs_num is '2'"),
        ({"logprob_start_len": -2}, "logprob_start_len is -2"),
        ({"temprature": 0}, "did you mean 'temperature'"),
        ({"stop": 3}, "stop is 3"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        sampling(options)


def test_given_options_go_over_the_defaults() -> None:
    defaults = Sampling(SamplingParams(temperature=0.5, top_k=3), frozenset({"temperature", "top_k"}))
    own = sampling({"temperature": 0.0})
    merged = own.over(defaults)
    assert (merged.params.temperature, merged.params.top_k) == (0.0, 3)
    assert merged.given == {"temperature", "top_k"}
