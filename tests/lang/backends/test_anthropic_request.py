from dataclasses import replace
from typing import Any

import pytest

from ramet.lang.backends.anthropic_request import MAX_STARTS, Correspondent, Letter, SharedStarts, letter
from ramet.lang.backends.base import ToolCall, ToolOffer, ToolSpec
from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import Choice, JsonSchema, SamplingParams
from tests.lang.backends.test_openai_messages import transcript

WHOM = Correspondent("s", "m", 99, None, False, SharedStarts(), {})


def asked(made: Transcript, params: SamplingParams | None = None, **options: Any) -> Letter:
    offer = options.pop("offer", None)
    return letter(replace(WHOM, **options), made, params or SamplingParams(), offer)


def test_turns_of_one_role_are_one() -> None:
    made = transcript(("developer", "d"), ("system", "s"), ("user", "a"), ("tool", "b"), ("user", "c"))
    body = asked(made).body
    assert [block["text"] for block in body["system"]] == ["d", "s"]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b", "c")]}
    ]


def test_tool_results_are_one_turn_of_the_users() -> None:
    made = transcript(("user", "a"))
    calls = [ToolCall(id=name, name=name, arguments='{"x": 1}') for name in ("f", "g")]
    made.append_tool_calls(calls)
    made.append_tool_results([(call, call.id.upper()) for call in calls])
    body = asked(made).body
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["input"] for block in body["messages"][1]["content"]] == [{"x": 1}] * 2
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["f", "g"]
    assert [tool["name"] for tool in body["tools"]] == ["f", "g"]
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("f", {"type": "tool", "name": "f"}),
    ],
)
def test_tool_choices(choice: str, said: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {"a": {}}}
    offer = ToolOffer(tools=(ToolSpec(name="f", description="F", parameters=schema),), choice=choice)
    body = asked(transcript(("user", "a")), offer=offer).body
    assert body["tool_choice"] == said
    assert body["tools"] == [{"name": "f", "description": "F", "input_schema": schema}]


def test_constraints() -> None:
    schema = {"type": "object", "properties": {}}
    made = asked(transcript(("user", "a")), SamplingParams(grammar=JsonSchema.of(schema)))
    assert made.body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    wrapped = asked(transcript(("user", "a")), SamplingParams(grammar=Choice(("a", "b")), stop=("x",)))
    assert wrapped.reading.stops == ("x",)
    assert "stop_sequences" not in wrapped.body


def test_white_space_at_the_end_is_hidden() -> None:
    made = asked(transcript(("user", "a"), then="b \n"))
    assert made.hidden_space == " \n"
    assert made.body["messages"][-1]["content"] == [{"type": "text", "text": "b"}]
    assert asked(transcript(("user", "a "))).hidden_space == ""


def test_thinking_and_extra_fields() -> None:
    thinking = {"type": "adaptive"}
    body = asked(transcript(("user", "a")), thinking=thinking, extra_body={"metadata": {"user_id": "u"}}).body
    assert (body["thinking"], body["metadata"]) == (thinking, {"user_id": "u"})
    tool = ToolOffer(tools=(ToolSpec(name="f", parameters={}),))
    with pytest.raises(UnsupportedError, match="use tools without thinking"):
        asked(transcript(("user", "a")), thinking=thinking, offer=tool)


def test_marks() -> None:
    made = transcript(("system", "s"), ("user", "a"), ("assistant", "b"), then=None).fork()
    made.begin_role("user")
    made.append_text("c")
    made.end_role("user")
    made.begin_role("assistant")
    body = asked(made, caches_prompts=True).body
    blocks = [*body["system"], *(block for turn in body["messages"] for block in turn["content"])]
    assert [block["text"] for block in blocks if "cache_control" in block] == ["s", "b", "c"]


def test_starts_that_prompts_share() -> None:
    starts = SharedStarts()
    starts.add(transcript(("system", "s"), ("user", "a"), ("assistant", "b"), then="open"))
    starts.add(transcript(("user", "a"), then=None))
    starts.add(transcript(then="open"))
    made = transcript(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    body = asked(made, caches_prompts=True, shared_starts=starts).body
    assert ["cache_control" in turn["content"][-1] for turn in body["messages"]] == [False, True, True]
    other = transcript(("user", "a"), ("assistant", "x"), ("user", "c"))
    body = asked(other, caches_prompts=True, shared_starts=starts).body
    assert ["cache_control" in turn["content"][-1] for turn in body["messages"]] == [True, False, True]
    for number in range(MAX_STARTS):
        starts.add(transcript(("user", str(number)), then=None))
    assert starts.longest(asked(other).body["messages"]) == 0


def test_who_is_answered() -> None:
    with pytest.raises(UnsupportedError, match=r"say user\(\.\.\.\) first"):
        asked(transcript(("system", "s")))
    with pytest.raises(UnsupportedError, match="takes a system message at the beginning only"):
        asked(transcript(("user", "a"), ("system", "s")))
