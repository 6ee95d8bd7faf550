"""Scoring by echo against the definition in ``local_select``, on a server whose model is a table."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.base import SelectRequest
from ramet.lang.backends.openai_select import echo_fields, echo_result
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError

PIECES = ("ab", "a", "b", " ", "://", ":", "/", "x")
TEXTS = st.text("ab :/x", min_size=1, max_size=5)


def spelled(text: str) -> list[str]:
    """Greedy: the longest piece first."""
    tokens = []
    while text:
        tokens.append(next(piece for piece in PIECES if text.startswith(piece)))
        text = text[len(tokens[-1]) :]
    return tokens


def logprob(before: tuple[str, ...], token: str) -> float:
    return -0.25 - (sum(map(ord, "".join(before))) * 31 + sum(map(ord, token)) * 7) % 13


def answer(fields: dict[str, Any], *, bos: bool = True) -> dict[str, Any]:
    choices = []
    for index, text in enumerate(fields["prompt"]):
        tokens = [*(["<s>"] if bos else []), *spelled(text), "!"]
        values = [logprob(tuple(tokens[:at]), token) if at else None for at, token in enumerate(tokens)]
        choices.append({"index": index, "logprobs": {"tokens": tokens, "token_logprobs": values}})
    return {"choices": choices}


def expected_sums(prompt: str, options: tuple[str, ...]) -> list[float]:
    """S_i - K, as defined."""
    alone = spelled(prompt)
    extended = [spelled(prompt + option) for option in options]
    start = 0
    while all(len(one) > start and one[start] == alone[start] for one in extended if start < len(alone)):
        if start == len(alone):
            break
        start += 1

    def total(tokens: list[str]) -> float:
        row = ["<s>", *tokens]
        return math.fsum(logprob(tuple(row[:at]), row[at]) for at in range(start + 1, len(row)))

    return [total(one) - total(alone) for one in extended]


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4, unique=True))
def test_scores_are_as_defined(prompt: str, options: list[str]) -> None:
    prompt = f"x {prompt}"
    request = SelectRequest(options=tuple(options), normalization="sum")
    result = echo_result("s", prompt, request, answer(echo_fields(prompt, options)))
    expected = expected_sums(prompt, request.options)
    assert result.scores == pytest.approx(expected)
    assert result.index == max(range(len(options)), key=lambda index: (result.scores[index], -index))
    assert result.option == options[result.index]


def test_normalizations() -> None:
    prompt, options = "x ", ("ab", "a", "b b")
    fields = echo_fields(prompt, options)
    for normalization in ("token_length", "greedy", "sum"):
        result = echo_result(
            "s", prompt, SelectRequest(options=options, normalization=normalization), answer(fields)
        )
        assert result.option in options
    drawn = {
        echo_result(
            "s", prompt, SelectRequest(options=options, temperature=100.0, seed=seed), answer(fields)
        ).option
        for seed in range(40)
    }
    assert drawn == set(options)


def test_a_seam_that_spells_the_prompt_anew() -> None:
    request = SelectRequest(options=("//x", " x"))
    result = echo_result("s", "x:", request, answer(echo_fields("x:", request.options)))
    assert [len(values) for values in result.token_logprobs] == [2, 3]


def test_what_cannot_be_scored() -> None:
    with pytest.raises(UnsupportedError, match="nothing to be scored behind"):
        echo_fields("", ["a"])
    request = SelectRequest(options=("b",))
    with pytest.raises(UnsupportedError, match="the prompt is part of the options' first token"):
        echo_result("s", "a", request, answer(echo_fields("a", ["b"])))
    with pytest.raises(GenerationError, match="answered 2 prompts with 0 choices"):
        echo_result("s", "a", request, {"choices": []})
    broken = answer(echo_fields("x ", ["b"]))
    broken["choices"][1]["logprobs"]["tokens"][1] = "\ufffd"
    with pytest.raises(GenerationError, match="tokens that do not spell it"):
        echo_result("s", "x ", request, broken)
    with pytest.raises(InvalidRequestError, match="has no token of its own"):
        echo_result("s", "x ", SelectRequest(options=("",)), answer(echo_fields("x ", [""])))
