from typing import Any

import numpy as np
import pytest

from ramet.runtime.engine import prompts
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.protocol import Choice, InvalidRequestError, ProgramTag, PromptTooLongError, SamplingParams

INFO = EngineInfo(model="fake", vocab_size=258, context_length=20, kv_tokens=10)


@pytest.mark.parametrize(
    ("given", "items", "is_batch"),
    [
        ("text", ["text"], False),
        ([1, 2], [[1, 2]], False),
        ((1, 2), [(1, 2)], False),
        (["a", "b"], ["a", "b"], True),
        (["a"], ["a"], True),
        ([[1], [2, 3]], [[1], [2, 3]], True),
        (["a", [1]], ["a", [1]], True),
    ],
)
def test_a_list_of_ints_is_one_prompt_and_a_list_of_prompts_a_batch(
    given: object, items: list[Any], is_batch: bool
) -> None:
    assert prompts.split_prompts(given) == (items, is_batch)


@pytest.mark.parametrize("given", [[], (), 5, None, b"bytes", {"a": 1}, iter([1])])
def test_prompts_of_another_kind_are_refused(given: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prompts.split_prompts(given)
    assert caught.value.field == "prompts"


def test_messages_are_one_conversation_or_a_list_of_them() -> None:
    message = {"role": "user", "content": "hi"}
    assert prompts.split_messages([message]) == ([[message]], False)
    assert prompts.split_messages([[message], [message]]) == ([[message], [message]], True)


@pytest.mark.parametrize("given", [[], "hi", [[]], [["hi"]], {"role": "user"}, [1], None])
def test_messages_of_another_kind_are_refused(given: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prompts.split_messages(given)
    assert caught.value.field == "messages"


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequestError, match=r"prompts has the lone surrogate U\+D83D at character 2"):
        prompts.check_text("ab\ud83d", "prompts")


def test_token_ids_may_be_any_integers() -> None:
    ids = prompts.check_token_ids(np.array([1, 257]), INFO, "prompts")  # type: ignore[arg-type]
    assert ids == [1, 257]
    assert all(type(token_id) is int for token_id in ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 258], r"token id 1 is 258; the model's token ids are 0 to 257"),
        ([-1], r"token id 0 is -1"),
        ([1.0], r"token id 0 is 1.0; a token id is an integer"),
        ([True], r"token id 0 is True"),
        (["a"], r"token id 0 is 'a'"),
        ([None], r"token id 0 is None"),
    ],
)
def test_wrong_token_ids_are_named(ids: list[object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        prompts.check_token_ids(ids, INFO, "prompts")


def test_lengths_are_refused_with_the_numbers() -> None:
    prompts.check_length([1] * 9, INFO)
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        prompts.check_length([], INFO)
    with pytest.raises(PromptTooLongError, match="has 10 tokens, and the KV pool of 10"):
        prompts.check_length([1] * 10, INFO)
    with pytest.raises(PromptTooLongError, match="has 20 tokens, and the context of 20"):
        prompts.check_length([1] * 20, INFO)


def test_overrides_are_applied_to_each() -> None:
    given = [SamplingParams(max_tokens=5), SamplingParams(max_tokens=6)]
    resolved = prompts.resolve_params(given, {"temperature": 0, "stop": "x", "stop_token_ids": [1, 2]}, 2, INFO)
    assert [item.max_tokens for item in resolved] == [5, 6]
    assert all(
        item.temperature == 0 and item.stop == ("x",) and item.stop_token_ids == (1, 2) for item in resolved
    )
    assert prompts.resolve_params(None, {}, 2, INFO) == [SamplingParams()] * 2
    assert prompts.resolve_params(None, {"stop_token_ids": 7}, 1, INFO)[0].stop_token_ids == (7,)


@pytest.mark.parametrize(
    ("params", "overrides", "message"),
    [
        (None, {"temprature": 1}, r"no sampling parameter 'temprature'; did you mean temperature\?"),
        (None, {"max_new_tokens": 1}, "here it is max_tokens"),
        (None, {"json_schema": {}}, r"here it is grammar=JsonSchema\.of"),
        (None, {"qqq": 1}, "they are max_tokens"),
        (None, {"temperature": -1}, "temperature is -1"),
        (None, {"temperature": float("nan")}, "temperature is nan"),
        (None, {"stop": [""]}, "stop is ''"),
        (None, {"stop": 5}, "stop is"),
        (
            None,
            {"stop_token_ids": (258,)},
            r"stop_token_ids: entry 0 is 258; the model's token ids are 0 to 257",
        ),
        (None, {"logit_bias": {300: 1.0}}, r"logit_bias: key 0 is 300"),
        (None, {"stop": ["\ud800"]}, "lone surrogate"),
        (None, {"grammar": Choice(("\ud800",))}, "lone surrogate"),
        (None, {"max_tokens": 2**70}, f"max_tokens is {2**70}; it must be an integer from 1 to {2**63 - 1}"),
        ([SamplingParams()], {}, "sampling_params has 1 entries for 2 prompts"),
        ("greedy", {}, "sampling_params is 'greedy'"),
        ([None, None], {}, "it must be one SamplingParams, or a list"),
    ],
)
def test_wrong_parameters_are_refused(params: Any, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        prompts.resolve_params(params, overrides, 2, INFO)


def test_tags_are_one_for_all_or_one_each() -> None:
    one, two = ProgramTag(program_id="a"), ProgramTag(program_id="b")
    assert prompts.resolve_tags(None, 2) == [ProgramTag()] * 2
    assert prompts.resolve_tags(one, 2) == [one, one]
    assert prompts.resolve_tags([one, two], 2) == [one, two]
    with pytest.raises(InvalidRequestError, match="tag has 1 entries for 2 prompts"):
        prompts.resolve_tags([one], 2)


def test_the_seeds_of_n_answers_differ_and_the_first_is_the_seed_itself() -> None:
    seeds = {
        prompts.child_seed(seed, index) for seed in (-(2**63), -1, 0, 1, 2**63 - 1) for index in range(200)
    }
    assert len(seeds) == 1000
    assert all(seed is not None and -(2**63) <= seed < 2**63 for seed in seeds)
    assert prompts.child_seed(7, 0) == 7
    assert prompts.child_seed(None, 3) is None


def test_n_answers_are_n_requests_of_one() -> None:
    children = prompts.child_params(SamplingParams(n=3, seed=5, prompt_logprobs=1))
    assert [child.n for child in children] == [1, 1, 1]
    assert [child.prompt_logprobs for child in children] == [1, None, None]
    assert len({child.seed for child in children}) == 3
    single = SamplingParams(seed=5)
    assert prompts.child_params(single) == [single]


def test_a_huge_wrong_value_is_shown_short() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prompts.split_prompts({"x": "y" * 10_000_000})
    assert len(str(caught.value)) < 300


def test_names_of_other_engines_lead_to_names_that_there_are() -> None:
    known = SamplingParams.__struct_fields__
    assert not set(prompts.ELSEWHERE) & set(known)
    assert {hint.partition("=")[0] for hint in prompts.ELSEWHERE.values()} <= set(known)
