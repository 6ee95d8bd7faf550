"""Results of tools that belong to no call, in every dialect."""

from typing import Any

import pytest

from ramet.runtime.server.errors import HttpError
from ramet.runtime.server.tools.results import check_chat_results, check_item_results, check_turn_results


def chat(call_id: object, result_id: object) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": result_id, "content": "r"},
    ]


def items(call_id: object, result_id: object) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": result_id, "output": "r"},
    ]


def turns(call_id: object, result_id: object) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": result_id, "content": "r"}]},
    ]


DIALECTS: list[tuple[Any, Any, str]] = [
    (check_chat_results, chat, "messages[2].tool_call_id"),
    (lambda given: check_item_results(given, "input"), items, "input[1].call_id"),
    (check_turn_results, turns, "messages[1].content[0].tool_use_id"),
]


@pytest.mark.parametrize(("check", "make", "where"), DIALECTS)
def test_a_result_names_an_earlier_call(check: Any, make: Any, where: str) -> None:
    check(make("a", "a"))
    for call_id, result_id in (("a", "b"), ("a", None), (None, "a"), (None, None), ("a", ["a"]), (1, 1)):
        with pytest.raises(HttpError) as caught:
            check(make(call_id, result_id))
        assert (caught.value.status, caught.value.detail.param) == (400, where)
        assert caught.value.detail.message.startswith(where)


@pytest.mark.parametrize(("check", "make", "where"), DIALECTS)
def test_a_call_after_its_result_is_none(check: Any, make: Any, where: str) -> None:
    with pytest.raises(HttpError):
        check(list(reversed(make("a", "a"))))


@pytest.mark.parametrize(("check", "make", "where"), DIALECTS)
def test_what_is_no_object_is_for_others_to_refuse(check: Any, make: Any, where: str) -> None:
    check([1, None, "x", [], {"role": "assistant", "tool_calls": [None, 1], "content": [None]}])
