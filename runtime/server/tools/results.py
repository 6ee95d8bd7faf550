"""Results of tools belong to calls: one that names no earlier call is refused, in every dialect."""

from collections.abc import Sequence
from typing import Any

from ramet.runtime.server.errors import bad_request


class MadeCalls:
    """The calls that a conversation has made so far, by their ids: a result has to be that of one of them.

    Changes with ``made`` alone.
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def made(self, call_id: object) -> None:
        if isinstance(call_id, str):
            self._ids.add(call_id)

    def check_result(self, call_id: object, where: str) -> None:
        """Raises HttpError (400) where no earlier call has the id that stands at ``where``."""
        if call_id is None:
            raise bad_request(
                f"{where} is missing; it is the id of the call whose result this is",
                param=where,
                code="missing_required_parameter",
            )
        if not isinstance(call_id, str) or call_id not in self._ids:
            raise bad_request(
                f"{where} is {str(call_id)[:80]!r}, and no earlier call has that id; send the call before its "
                "result",
                param=where,
                code="invalid_value",
            )


def check_chat_results(messages: Sequence[Any]) -> None:
    """Every tool message answers an earlier call. Raises HttpError (400)."""
    calls = MadeCalls()
    for index, message in enumerate(messages):
        match message:
            case {"role": "assistant", "tool_calls": [*made]}:
                for call in made:
                    calls.made(call.get("id") if isinstance(call, dict) else None)
            case {"role": "tool"}:
                calls.check_result(message.get("tool_call_id"), f"messages[{index}].tool_call_id")


def check_item_results(items: Sequence[Any], where: str) -> None:
    """The same of the items of responses."""
    calls = MadeCalls()
    for index, item in enumerate(items):
        match item:
            case {"type": "function_call"}:
                calls.made(item.get("call_id"))
            case {"type": "function_call_output"}:
                calls.check_result(item.get("call_id"), f"{where}[{index}].call_id")


def check_turn_results(messages: Sequence[Any]) -> None:
    """The same of the blocks of Anthropic's form."""
    calls = MadeCalls()
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for at, block in enumerate(content if isinstance(content, list) else ()):
            match block:
                case {"type": "tool_use"}:
                    calls.made(block.get("id"))
                case {"type": "tool_result"}:
                    where = f"messages[{index}].content[{at}].tool_use_id"
                    calls.check_result(block.get("tool_use_id"), where)
