"""Anthropic's conversation in the form of chat completions."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.messages_fields import MessagesFields, chosen_tools, conversation, sampling

TOOL = {"name": "f", "input_schema": {"type": "object"}, "description": "d"}


def messages_of(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return conversation(MessagesFields(messages=list(messages), **fields), reads_thinking=False).messages


def test_turns() -> None:
    results = [{"type": "tool_result", "tool_use_id": str(one), "content": f"r{one}"} for one in (1, 2)]
    assert messages_of({"role": "user", "content": results}, system="s") == [
        {"role": "system", "content": "s"},
        {"role": "tool", "tool_call_id": "1", "content": "r1"},
        {"role": "tool", "tool_call_id": "2", "content": "r2"},
    ]
    assert messages_of({"role": "assistant", "content": []}) == [{"role": "assistant", "content": ""}]
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        messages_of({"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]})


def test_thinking_is_turned_on_where_the_template_can() -> None:
    def kwargs(wanted: dict[str, Any] | None, *, reads: bool = True) -> dict[str, Any] | None:
        fields = MessagesFields(messages=[], thinking=wanted)
        return conversation(fields, reads_thinking=reads).chat_template_kwargs

    assert kwargs({"type": "enabled", "budget_tokens": 5}) == {"enable_thinking": True}
    assert kwargs({"type": "disabled"}) == {"enable_thinking": False}
    assert kwargs({"type": "disabled"}, reads=False) is None
    assert kwargs(None) is kwargs(None, reads=False) is None
    for wanted, reads in (({"type": "enabled"}, False), ({"type": "x"}, True)):
        with pytest.raises(InvalidRequestError, match="thinking"):
            kwargs(wanted, reads=reads)


@pytest.mark.parametrize(
    ("choice", "forced", "parallel", "count"),
    [
        (None, False, True, 1),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, False, 1),
        ({"type": "any"}, True, True, 1),
        ({"type": "tool", "name": "f"}, True, False, 1),
        ({"type": "none"}, False, True, 0),
    ],
)
def test_tools(choice: dict[str, Any] | None, forced: bool, parallel: bool, count: int) -> None:
    chosen = chosen_tools(MessagesFields(messages=[], tools=[TOOL], tool_choice=choice))
    assert (chosen.forced, chosen.parallel, len(chosen.tools)) == (forced, parallel, count)


def test_sampling() -> None:
    fields = MessagesFields(messages=[], temperature=0.5, top_k=3, stop_sequences=["x"])
    assert (sampling(fields).temperature, sampling(fields).top_k, sampling(fields).stop) == (0.5, 3, ["x"])
