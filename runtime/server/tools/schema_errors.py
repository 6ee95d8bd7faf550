"""Refusals of what the tools' schemas were made into, told of the schema that the client wrote."""

import re
from collections.abc import Sequence

from ramet.runtime.protocol import InvalidRequestError, RametError
from ramet.runtime.server.tools.definitions import ToolDefinition
from ramet.runtime.server.tools.enforcement import ANSWER, Enforcement, has_references

CHAT_PLACE = "tools[{index}].function.parameters"
RESPONSES_PLACE = "tools[{index}].parameters"
ANTHROPICS_PLACE = "tools[{index}].input_schema"
"""Where a dialect has a tool's schema."""

_IN_TAG = re.compile(r"in the structural tag, at (\S*): ")
_POINTER = re.compile(r"#(?:/|: | its | is )")
_END = r"(?=[/:;,' ]|$)"
_CALL = re.compile(rf"#(?:/items)?/anyOf/(\d+)/properties/(?:arguments|parameters){_END}")
_DEFINITION = re.compile(rf"#/\$defs/([A-Za-z0-9_.-]+){_END}")
_ANSWER = re.compile(rf"#/\$defs/{re.escape(ANSWER)}{_END}")
_NAMED_CALL = re.compile(r"/elements/(\d+)/elements/2/json_schema$")


def about_tools(
    error: RametError, tools: Sequence[ToolDefinition], enforced: Enforcement | None, place: str
) -> RametError:
    """The same error with the place in the schema of the tool that it is about. Others stay as they are.

    ``tools``: those of the choice that ``enforced`` was made of. ``place``: of a tool's schema in the request,
    with its ``{index}``.
    """
    if enforced is None or not isinstance(error, InvalidRequestError):
        return error
    message = str(error)
    # What only compiling found comes without a field; with a pointer it is the schemas'.
    if error.field != "grammar" and not (error.field is None and _POINTER.search(message)):
        return error
    tag = _IN_TAG.match(message)
    if tag is not None:
        # Of several tools that are wrong the first one is told of.
        message = message[tag.end() :].partition("; and in the structural tag, at ")[0]
    if _ANSWER.search(message):
        return type(error)(_ANSWER.sub("#", message), field="response_format")
    tag_place = "" if tag is None else tag[1]
    stands_alone = enforced.named is not None or _named_call(enforced, tag_place) is not None
    tool = _tool(message, tools, enforced, tag_place)
    if tool is None:
        return type(error)(f"tools, taken together: {message}", field="tools")
    if not stands_alone:
        message = _in_its_schema(message, tool)
    field = place.format(index=tool.index)
    return type(error)(f"{field}: {message}", field=field)


def _tool(
    message: str, tools: Sequence[ToolDefinition], enforced: Enforcement, tag_place: str
) -> ToolDefinition | None:
    """The one that the message is about; None: it does not say."""
    if len(tools) == 1:
        return tools[0]
    call = _named_call(enforced, tag_place) or _CALL.search(message)
    if call is not None and int(call[1]) < len(tools):
        return tools[int(call[1])]
    definition = _DEFINITION.search(message)
    return next((tool for tool in tools if definition is not None and tool.name == definition[1]), None)


def _named_call(enforced: Enforcement, tag_place: str) -> "re.Match[str] | None":
    """Where each tool's schema stands by itself, behind its name."""
    return _NAMED_CALL.search(tag_place) if enforced.format.named_before else None


def _in_its_schema(message: str, tool: ToolDefinition) -> str:
    """With pointers that begin at the schema's own root, of one that stands inside of the calls' schema."""
    message = _CALL.sub("#", message)
    if has_references(tool):
        message = re.sub(rf"#/\$defs/{re.escape(tool.name)}{_END}", "#", message)
    return message
