"""What is refused on arrival, and with which numbers."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError
from ramet.runtime.scheduler import Request, SchedulerConfig
from ramet.runtime.scheduler.admission import check_request
from tests.runtime.scheduler.fakes import make_input


def _limit(num_prompt: int, *, context: int = 100, num_slots: int = 1000, **params: Any) -> int:
    config = SchedulerConfig(num_pages=num_slots, page_size=1, context_length=context, vocab_size=50)
    request = Request.from_input(make_input("a", [1] * num_prompt, **params), arrival=0.0)
    return check_request(request, config)


def test_max_tokens_bounds_the_whole() -> None:
    assert _limit(10, max_tokens=5) == 15
    assert _limit(10, max_tokens=90) == 100


def test_none_means_as_much_as_fits() -> None:
    assert _limit(10, max_tokens=None) == 100
    assert _limit(10, max_tokens=None, num_slots=60) == 60


def test_max_tokens_beyond_the_pool_is_cut_to_it() -> None:
    assert _limit(10, max_tokens=80, num_slots=60) == 60


def test_a_prompt_that_leaves_one_token_is_the_longest() -> None:
    assert _limit(99, max_tokens=1) == 100
    with pytest.raises(PromptTooLongError, match=r"100 tokens and the context is 100.*to 99 tokens") as caught:
        _limit(100, max_tokens=1)
    assert caught.value.field == "token_ids"


def test_max_tokens_beyond_the_context_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        PromptTooLongError, match=r"60 tokens and max_tokens \(41\) are 101 .*lower max_tokens to 40"
    ):
        _limit(60, max_tokens=41)


def test_a_prompt_beyond_the_pool_is_refused_with_the_numbers() -> None:
    with pytest.raises(PromptTooLongError, match=r"50 tokens and the KV pool holds 50.*to 49 tokens"):
        _limit(50, max_tokens=None, num_slots=50)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="the prompt has no tokens"):
        _limit(0, max_tokens=1)


@pytest.mark.parametrize("token_id", [-1, 50, 2**40])
def test_token_ids_out_of_the_vocabulary_are_refused(token_id: int) -> None:
    config = SchedulerConfig(num_pages=9, page_size=1, context_length=9, vocab_size=50)
    request = Request.from_input(make_input("a", [1, token_id, 2], max_tokens=1), arrival=0.0)
    with pytest.raises(InvalidRequestError, match=f"token_ids has token {token_id}; .* 0 to 49"):
        check_request(request, config)


@pytest.mark.parametrize("token_id", [1.0, "1", True, None])
def test_token_ids_that_are_no_integers_are_refused(token_id: object) -> None:
    config = SchedulerConfig(num_pages=9, page_size=1, context_length=9, vocab_size=50)
    request = Request.from_input(make_input("a", [1], max_tokens=1), arrival=0.0)
    request.history[0] = token_id  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="token ids are integers"):
        check_request(request, config)


@pytest.mark.parametrize(("field", "value"), [("stop_token_ids", (3, 50)), ("logit_bias", {50: 1.0})])
def test_parameters_that_name_unknown_tokens_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} has token 50; .* 0 to 49") as caught:
        _limit(5, max_tokens=1, **{field: value})
    assert caught.value.field == field
