import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ramet.runtime.engine.calls import Call
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.intake import Ask, Intake
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, PromptTooLongError, SamplingParams
from ramet.runtime.tokenizer import ByteTokenizer
from ramet.runtime.tokenizer.byte_tokenizer import BOS_ID, EOS_ID

INFO = EngineInfo(model="fake", vocab_size=258, context_length=40, kv_tokens=40)
INTAKE = Intake(ByteTokenizer(add_bos=True), INFO)


def ids() -> Callable[[], str]:
    counter = itertools.count()
    return lambda: f"id{next(counter)}"


def calls(**ask: Any) -> list[Call]:
    return INTAKE.calls(Ask(**ask), ids())[0]


def test_text_gets_bos_and_its_special_tokens_and_ids_stay_as_they_are() -> None:
    assert calls(prompts="a</s>")[0].prompt_token_ids == [BOS_ID, 97, EOS_ID]
    assert calls(prompts=[97])[0].prompt_token_ids == [97]
    assert [call.prompt_token_ids for call in calls(prompts=["a", "b"])] == [[BOS_ID, 97], [BOS_ID, 98]]
    assert [call.prompt_token_ids for call in calls(prompts=["a", (98,)])] == [[BOS_ID, 97], [98]]


def test_messages_go_through_the_template_and_never_become_special_tokens() -> None:
    (call,) = calls(messages=[{"role": "user", "content": "x</s>"}])
    text = ByteTokenizer().decode(call.prompt_token_ids)
    assert text == "user: x</s>\nassistant: "
    assert call.prompt_token_ids.count(EOS_ID) == 1
    assert len(calls(messages=[[{"role": "user", "content": "x"}], [{"role": "user", "content": "y"}]])) == 2


def test_a_call_of_n_answers_is_n_requests_on_one_prompt() -> None:
    (call,) = calls(
        prompts="a",
        overrides={"n": 3, "seed": 1},
        priority=2,
        cache_salt="s",
        tag=ProgramTag(branch="b"),
        request_id="mine",
    )
    assert call.request_id == "mine"
    assert call.input_ids == ["mine#0", "mine#1", "mine#2"]
    assert all(item.token_ids is call.prompt_token_ids for item in call.inputs)
    assert {(item.priority, item.cache_salt, item.tag.branch) for item in call.inputs} == {(2, "s", "b")}
    assert calls(prompts="a", request_id="mine")[0].input_ids == ["mine"]


def test_each_prompt_has_its_own_parameters_and_tag() -> None:
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)]
    tags = [ProgramTag(step=1), ProgramTag(step=2)]
    got = calls(prompts=["a", "b"], sampling_params=params, tag=tags)
    assert [(c.inputs[0].params.max_tokens, c.inputs[0].tag.step) for c in got] == [(1, 1), (2, 2)]
    assert [c.request_id for c in got] == ["id0", "id1"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({}, "give either prompts or messages"),
        ({"prompts": "a", "messages": [{"role": "user", "content": "a"}]}, "give either prompts or messages"),
        ({"prompts": []}, "prompts is an empty list"),
        ({"prompts": ["a", []]}, "prompt 1 of the batch: the prompt is empty"),
        ({"prompts": ["a", "\udc00"]}, r"prompts\[1\] has the lone surrogate U\+DC00"),
        ({"prompts": "\udc00"}, r"prompts has the lone surrogate U\+DC00"),
        ({"prompts": ["a", [999]]}, r"prompt 1 of the batch: token id 0 is 999"),
        ({"messages": [{"role": "user", "content": "\udc00"}]}, "lone surrogate"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "role"),
        ({"messages": [[{"role": "user", "content": "a"}], [{"role": "user"}]]}, "prompt 1 of the batch"),
        ({"prompts": "a", "priority": 1.5}, "priority is 1.5"),
        ({"prompts": "a", "priority": 2**40}, "priority is 1099511627776"),
        ({"prompts": "a", "cache_salt": "x" * 300}, "cache_salt must be a string of at most 256"),
        ({"prompts": "a", "cache_salt": "\ud800"}, "cache_salt has the lone surrogate"),
        ({"prompts": ["a", "b"], "request_id": "x"}, "request_id names one call, and there are 2 prompts"),
        ({"prompts": "a", "request_id": ""}, "request_id is empty"),
        ({"prompts": "a", "request_id": 5}, "request_id must be a string"),
        ({"prompts": "a", "tag": ProgramTag(program_id="\ud800")}, "tag has a lone surrogate"),
        ({"prompts": "a", "tag": "x"}, "tag is 'x'"),
    ],
)
def test_wrong_requests_are_refused(ask: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        calls(**ask)


def test_too_long_prompts_are_refused_with_the_numbers() -> None:
    with pytest.raises(
        PromptTooLongError, match="prompt 1 of the batch: the prompt has 101 tokens, and the context of 40"
    ):
        calls(prompts=["a", "a" * 100])


def test_an_empty_text_is_a_prompt_only_where_there_is_a_bos() -> None:
    assert calls(prompts="")[0].prompt_token_ids == [BOS_ID]
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        Intake(ByteTokenizer(), INFO).calls(Ask(prompts=""), ids())
