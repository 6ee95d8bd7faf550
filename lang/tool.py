"""Tools: Python functions that a model may call, with arguments that are checked against their type hints."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import msgspec

from ramet.lang.backends import tool_json
from ramet.lang.backends.base import ToolSpec
from ramet.lang.pydantic_types import PydanticValue, is_pydantic_default, stand_in
from ramet.lang.tool_callables import ToolCallable, tool_callable
from ramet.lang.values import convert_inner, type_schema
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.nesting import is_nested_within

ON_ERROR = ("report", "raise")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as a model sees it. Made by ``Tool.of``."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""
    function: Callable[..., Any]
    arguments_type: type[msgspec.Struct]

    @classmethod
    def of(cls, function: "Callable[..., Any] | Tool") -> "Tool":
        """From a function's name, docstring and type hints. ``Annotated[int, "how many"]`` describes a
        parameter, as pydantic's ``Field(description="how many")`` or the docstring's line ``name: ...`` does.
        Methods, partials and objects that can be called are as good; a dataclass, pydantic model, msgspec
        struct or NamedTuple is called to make one.

        Raises:
            InvalidRequestError: it has no name, or a parameter has no type hint, or one without JSON Schema,
                or is ``*args``; or it is another class.
        """
        if isinstance(function, Tool):
            return function
        called = tool_callable(function)
        name, text = called.name, called.docstring
        try:
            arguments_type = _arguments_type(called)
            schema = _unwrapped(type_schema(arguments_type))
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tool {name} has a parameter of a type without schema: {error}", field="tools"
            ) from None
        for parameter, description in _descriptions(called).items():
            if parameter in schema["properties"]:
                schema["properties"][parameter].setdefault("description", description)
        return cls(name, text.split("\n\n", 1)[0].replace("\n", " "), schema, function, arguments_type)

    def spec(self) -> ToolSpec:
        """As backends are told of it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def as_json(self) -> dict[str, Any]:
        """In the form of OpenAI's ``tools``, which chat templates take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def arguments(self, arguments: object) -> dict[str, Any]:
        """Checked and converted to the hints' types. Raises ValueError that says what is wrong."""
        struct = msgspec.convert(arguments, self.arguments_type, dec_hook=convert_inner)
        values = {field: getattr(struct, field) for field in struct.__struct_fields__}
        return {
            field: value.value if isinstance(value, PydanticValue) else value for field, value in values.items()
        }

    def run(self, arguments: object) -> Any:
        """The function's result (of an ``async def`` function, to be awaited) for arguments from JSON."""
        return self.function(**self.arguments(arguments))


def describe_tools(tools: Sequence[Callable[..., Any] | Tool]) -> str:
    """What to tell a model of the tools, in its system message, before ``use_tools``."""
    return tool_json.describe([Tool.of(tool).spec() for tool in tools])


def tools_by_name(functions: Sequence[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Raises InvalidRequestError: a function cannot be a tool, or two have one name, or there is none."""
    given: object = functions
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidRequestError(
            f"tools is {functions!r}; it must be a list of at least one function with type hints", field="tools"
        )
    tools = [Tool.of(function) for function in functions]
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        names = [tool.name for tool in tools]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(f"tools has two of the name {twice!r}; rename one", field="tools")
    return by_name


def result_text(result: object) -> str:
    """What a model is told that a tool gave: a text as it is, all else as JSON where it has one."""
    if isinstance(result, str):
        # Of half a surrogate pair, which is no character, a question mark.
        return result.encode(errors="replace").decode()
    if not is_nested_within(result):
        return f"a {type(result).__name__} that is nested too deeply to be written"
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError, RecursionError):
        return str(result).encode(errors="replace").decode()


def error_text(error: Exception) -> str:
    """What a model is told of a tool that failed."""
    return result_text({"error": described(error)})


def described(error: BaseException) -> str:
    """The error's type and text. Never raises: an error of a tool may fail to say what it is."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as failure:
        # The boundary to the user's class.
        return f"{name}, whose text could not be made: {type(failure).__name__}"


def check_on_error(value: object, field: str) -> None:
    if value not in ON_ERROR:
        raise InvalidRequestError(f"{field} is {value!r}; it must be one of {', '.join(ON_ERROR)}", field=field)


def _arguments_type(called: ToolCallable) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in called.parameters:
        hint, default = called.hints[parameter.name], parameter.default
        if is_pydantic_default(default):
            hint = Annotated[hint, default]
            is_required = default.is_required()
            default = parameter.empty if is_required else default.get_default(call_default_factory=True)
        hint = stand_in(hint, parameter.name)
        if default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(default)))
    return msgspec.defstruct(called.name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    # A struct takes no mutable default that is not empty, but a function that makes it.
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: value.copy())
    return value


def _descriptions(called: ToolCallable) -> dict[str, str]:
    """Of the parameters, from the docstring's lines ``name: ...``, and from their hints where these say one."""
    described: dict[str, str] = dict(re.findall(r"^[ \t]+(\w+):[ \t]+(.+)$", called.docstring, re.MULTILINE))
    for name, hint in called.hints.items():
        if get_origin(hint) is Annotated:
            texts = [extra for extra in get_args(hint)[1:] if isinstance(extra, str)]
            described.update((name, text) for text in texts[:1])
    return described


def _unwrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a struct itself, which msgspec puts among the definitions."""
    definitions = dict(schema.get("$defs", {}))
    own = definitions.pop(schema["$ref"].removeprefix("#/$defs/"))
    own = {key: value for key, value in own.items() if key != "title"}
    return {**own, "$defs": definitions} if definitions else own
