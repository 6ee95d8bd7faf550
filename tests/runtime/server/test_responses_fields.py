"""A response's request in the form of chat completions."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.responses_fields import (
    IGNORED,
    REFUSED,
    ResponsesFields,
    chosen_tools,
    constraint,
    conversation,
    without_refused,
)

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def test_text_before_calls_is_one_answer_with_them() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "u"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    ]
    _, answer = conversation(ResponsesFields(input=items)).messages
    assert (answer["content"], len(answer["tool_calls"])) == ("t", 1)


def test_formats() -> None:
    assert constraint(ResponsesFields(input="x")).response_format is None
    plain = {"format": {"type": "text"}, "verbosity": "medium"}
    assert constraint(ResponsesFields(input="x", text=plain)).response_format == {"type": "text"}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    assert constraint(ResponsesFields(input="x", text={"format": schema})).response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        (None, False),
        ("required", True),
        ({"type": "function", "name": "f"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, True),
    ],
)
def test_tools(choice: Any, forced: bool) -> None:
    chosen = chosen_tools(ResponsesFields(input="x", tools=[TOOL], tool_choice=choice))
    assert (set(chosen.names), chosen.forced) == ({"f"}, forced)


def test_what_is_ignored_and_refused() -> None:
    assert without_refused(
        {"input": "x", **dict.fromkeys(IGNORED, "y"), **dict.fromkeys(REFUSED)}, stores=False
    ) == {"input": "x"}
    for name, (harmless, _) in REFUSED.items():
        assert all(without_refused({name: value}, stores=False) == {} for value in harmless)
        with pytest.raises(HttpError) as caught:
            without_refused({name: {"anything": 1}}, stores=False)
        assert caught.value.detail.param == name
    with pytest.raises(InvalidRequestError, match=r"reasoning\.x"):
        conversation(ResponsesFields(input="x", reasoning={"x": 1}))


def test_why_conversations_and_prompts_are_refused_where_responses_are_stored() -> None:
    for name in ("conversation", "prompt"):
        with pytest.raises(HttpError) as caught:
            without_refused({name: "x"}, stores=True)
        assert "nothing is stored" not in caught.value.detail.message
