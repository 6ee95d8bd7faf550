"""The tools of a request and which of them may, or must, be called."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ramet.runtime.protocol import InvalidRequestError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_TOOLS = 256
_OTHER_TYPES = ("array", "string", "number", "integer", "boolean", "null")
_SHOWN = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""
    strict: bool
    source: dict[str, Any]
    """As the client wrote it, less what is ignored: what the chat template is shown."""
    index: int = 0
    """Among the request's tools."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the model may do with the tools."""

    tools: tuple[ToolDefinition, ...] = ()
    """Those that it may call; none: it is not told of any."""
    forced: bool = False
    """It must call one of them."""
    parallel: bool = True
    """It may call several in one answer."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


def tool_choice(tools: Sequence[Any] | None, choice: object, *, parallel: bool | None) -> ToolChoice:
    """OpenAI's ``tools``, ``tool_choice`` and ``parallel_tool_calls``.

    ``none`` takes the tools out of the prompt as well: the model cannot call what it does not see.

    Raises:
        InvalidRequestError: names what is wrong.
    """
    defined = _definitions(tools or ())
    many = parallel is not False
    match choice:
        case "none":
            return ToolChoice()
        case None | "auto":
            return ToolChoice(defined, parallel=many)
        case "required":
            if not defined:
                _fail("tool_choice", "is required, and there are no tools; give some")
            return ToolChoice(defined, forced=True, parallel=many)
        case {"type": "function", "function": {"name": name}}:
            return ToolChoice(
                (_named(name, defined, "tool_choice.function.name"),), forced=True, parallel=False
            )
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]},
        }:
            return ToolChoice(_allowed(allowed, defined), forced=mode == "required", parallel=many)
        case _:
            _fail(
                "tool_choice",
                f"is {str(choice)[:80]!r}; it must be none, auto, required, "
                '{"type": "function", "function": {"name": ...}} or allowed_tools',
            )


def _definitions(tools: Sequence[Any]) -> tuple[ToolDefinition, ...]:
    if len(tools) > MAX_TOOLS:
        _fail("tools", f"has {len(tools)} entries; at most {MAX_TOOLS} are taken")
    defined: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        one = _definition(tool, index)
        if one.name in defined:
            _fail(f"{where}.function.name", f"is {one.name!r}, as another tool's; rename one")
        defined[one.name] = one
    return tuple(defined.values())


def _definition(tool: Any, index: int) -> ToolDefinition:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        _fail(f"{where}.type", f"is {str(kind)[:80]!r}; tools of type function are taken")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        _fail(f"{where}.function", "is missing; it is an object with name, description and parameters")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _fail(
            f"{where}.function.name",
            f"is {str(name)[:80]!r}; it must be 1 to 64 letters, digits, dots, dashes and underscores",
        )
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        _fail(f"{where}.function.parameters", "must be a JSON Schema, an object")
    strict = function.get("strict")
    if not isinstance(strict, bool | None):
        _fail(f"{where}.function.strict", "must be true or false")
    shown = {key: value for key, value in function.items() if key in _SHOWN}
    parameters = _of_objects(parameters, f"{where}.function.parameters")
    return ToolDefinition(name, parameters, bool(strict), {"type": "function", "function": shown}, index)


def _of_objects(parameters: dict[str, Any], where: str) -> dict[str, Any]:
    """The schema of the arguments, which are an object whatever it says: a list is no call."""
    declared = parameters.get("type", "object")
    if isinstance(declared, str) and declared in _OTHER_TYPES:
        _fail(f"{where}.type", f"is {declared!r}, and the arguments of a call are an object; write object")
    if "type" not in parameters or (isinstance(declared, list) and "object" in declared):
        return {"type": "object", **{key: value for key, value in parameters.items() if key != "type"}}
    return parameters


def _named(name: object, defined: Sequence[ToolDefinition], where: str) -> ToolDefinition:
    found = next((tool for tool in defined if tool.name == name), None)
    if found is None:
        _fail(where, f"is {str(name)[:80]!r}, and there is no tool of that name")
    return found


def _allowed(allowed: Sequence[Any], defined: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    where = "tool_choice.allowed_tools.tools"
    chosen = []
    for index, tool in enumerate(allowed):
        match tool:
            case {"type": "function", "function": {"name": name}}:
                chosen.append(_named(name, defined, f"{where}[{index}].function.name"))
            case _:
                _fail(f"{where}[{index}]", 'must be {"type": "function", "function": {"name": ...}}')
    if not chosen:
        _fail(where, "is empty; name at least one tool")
    return tuple(chosen)


def _fail(field: str, message: str) -> NoReturn:
    raise InvalidRequestError(f"{field} {message}", field=field)
