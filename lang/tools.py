"""Tools: Python functions that a model may call, with arguments that are checked against their type hints."""

import inspect
import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Unpack, get_args, get_origin, get_type_hints

import msgspec

from ramet.lang.api import PlainGenOptions, assistant, gen
from ramet.lang.errors import GenerationError, ProgramStructureError, ToolError, UnsupportedError
from ramet.lang.ir import RoleBegin, RoleEnd
from ramet.lang.state import ProgramState
from ramet.lang.values import json_document, type_schema
from ramet.runtime.protocol import InvalidRequestError

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
        parameter, as a line ``name: ...`` in the docstring does.

        Raises:
            InvalidRequestError: a parameter has no type hint, or one without JSON Schema, or is ``*args``.
        """
        if isinstance(function, Tool):
            return function
        name = function.__name__
        text = inspect.getdoc(function) or ""
        arguments_type = _arguments_type(function, name)
        try:
            schema = _unwrapped(type_schema(arguments_type))
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tool {name} has a parameter of a type without schema: {error}", field="tools"
            ) from None
        for parameter, description in _descriptions(function, text).items():
            if parameter in schema["properties"]:
                schema["properties"][parameter].setdefault("description", description)
        return cls(name, text.split("\n\n", 1)[0].replace("\n", " "), schema, function, arguments_type)

    def as_json(self) -> dict[str, Any]:
        """In the form of OpenAI's ``tools``, which chat templates take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def arguments(self, arguments: object) -> dict[str, Any]:
        """Checked and converted to the hints' types. Raises ValueError that says what is wrong."""
        struct = msgspec.convert(arguments, self.arguments_type)
        return {field: getattr(struct, field) for field in struct.__struct_fields__}

    def run(self, arguments: object) -> Any:
        """The function's result (of an ``async def`` function, to be awaited) for arguments from JSON."""
        return self.function(**self.arguments(arguments))


def describe_tools(tools: Sequence[Callable[..., Any] | Tool]) -> str:
    """What to tell a model of the tools, in its system message, before ``use_tools``."""
    lines = [json_document(Tool.of(tool).as_json()["function"], "tools") for tool in tools]
    return (
        "You may call these functions:\n" + "\n".join(lines) + "\n"
        'To call one, answer with JSON: {"name": "...", "arguments": {...}}. You are then told its result.\n'
        'To give your answer, answer with JSON: {"answer": "..."}.'
    )


def calls_schema(tools: Sequence[Tool], *, may_answer: bool = True) -> dict[str, Any]:
    """JSON Schema of a call of one of the tools, or of an answer: what use_tools holds the model to."""
    alternatives: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for tool in tools:
        parameters = _with_definitions_of(tool.name, tool.parameters)
        definitions |= parameters.pop("$defs", {})
        alternatives.append(_object(name={"const": tool.name}, arguments=parameters))
    if may_answer:
        alternatives.append(_object(answer={"type": "string"}))
    schema: dict[str, Any] = {"anyOf": alternatives}
    return {**schema, "$defs": definitions} if definitions else schema


def use_tools(
    s: ProgramState,
    name: str,
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    max_rounds: int = 8,
    on_error: str = "report",
    **options: Unpack[PlainGenOptions],
) -> str:
    """Lets the model call tools until it answers; the answer becomes the variable ``name`` and is returned.

    Each call is an assistant message, constrained to the tools' schema, and its result a tool message. The
    model has to know of the tools: say ``system(describe_tools(tools))`` before. In the last round it must
    answer.

    Args:
        on_error: "report": the model is told what a tool raised; "raise": it is raised, as ToolError.
        options: as for ``gen``.

    Raises:
        UnsupportedError: the backend has no tools.
        ToolError: a tool failed and errors are to be raised.
    """
    rounds = _rounds(s, name, [Tool.of(tool) for tool in tools], max_rounds, on_error, dict(options))
    try:
        step = next(rounds)
        while True:
            step = rounds.send(step.run() if isinstance(step, _Invocation) else s[step])
    except StopIteration as end:
        return str(end.value)


async def ause_tools(
    s: ProgramState,
    name: str,
    tools: Sequence[Callable[..., Any] | Tool],
    *,
    max_rounds: int = 8,
    on_error: str = "report",
    **options: Unpack[PlainGenOptions],
) -> str:
    """As ``use_tools``, for async programs; tools may be ``async def`` too."""
    rounds = _rounds(s, name, [Tool.of(tool) for tool in tools], max_rounds, on_error, dict(options))
    try:
        step = next(rounds)
        while True:
            if isinstance(step, _Invocation):
                step = rounds.send(await step.arun())
            else:
                step = rounds.send(await s.aio.get(step))
    except StopIteration as end:
        return str(end.value)


@dataclass(frozen=True, slots=True)
class _Invocation:
    """A tool to be run with arguments. Running it returns the result, or the Exception that it raised."""

    tool: Tool
    arguments: object

    def run(self) -> object:
        try:
            result = self.tool.run(self.arguments)
        except Exception as error:
            # Told to the model, or raised: the loop decides.
            return error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ProgramStructureError(f"tool {self.tool.name} is async; use `await ause_tools(...)`")
        return result

    async def arun(self) -> object:
        try:
            result = self.tool.run(self.arguments)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            # Told to the model, or raised: the loop decides.
            return error


def _rounds(
    s: ProgramState, name: str, tools: list[Tool], max_rounds: int, on_error: str, options: dict[str, Any]
) -> Generator[str | _Invocation, Any, str]:
    """Yields a variable whose value it needs, or a tool that is to be run; returns the answer."""
    by_name = _by_name(tools)
    if on_error not in ON_ERROR:
        raise InvalidRequestError(
            f"on_error is {on_error!r}; it must be one of {', '.join(ON_ERROR)}", field="on_error"
        )
    if not isinstance(max_rounds, int) or max_rounds < 1:
        raise InvalidRequestError(f"max_rounds is {max_rounds!r}; it must be at least 1", field="max_rounds")
    capabilities = s.capabilities
    if not capabilities.tools:
        raise UnsupportedError(
            f"{capabilities.name} has no tools; call them in the program and say their results"
        )
    for left in reversed(range(max_rounds)):
        schema = calls_schema(tools if left else [])
        call = f"{name}_call"
        s += assistant(gen(call, json_schema=schema, **options))
        document = _document((yield call), call)
        if "answer" in document:
            s.set_var(name, document["answer"])
            return str(document["answer"])
        tool = by_name[document["name"]]
        result = yield _Invocation(tool, document["arguments"])
        if isinstance(result, Exception):
            if on_error == "raise":
                message = f"tool {tool.name} failed: {type(result).__name__}: {result}"
                raise ToolError(message, variable=tool.name) from result
            result = {"error": f"{type(result).__name__}: {result}"}
        s += RoleBegin("tool") + _as_text(result) + RoleEnd("tool")
    raise AssertionError("the last round ends with an answer")


def _document(text: str, variable: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise GenerationError(
            f"the call {text[:80]!r} is not whole; raise max_tokens", variable=variable
        ) from error
    return document


def _by_name(tools: list[Tool]) -> dict[str, Tool]:
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        names = [tool.name for tool in tools]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(f"tools has two of the name {twice!r}; rename one", field="tools")
    return by_name


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError):
        return str(result)


def _arguments_type(function: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidRequestError(
                f"tool {name} has the parameter {parameter}; a model calls by name: give each its own",
                field="tools",
            )
        if parameter.name not in hints:
            raise InvalidRequestError(
                f"tool {name} has no type hint for {parameter.name!r}; add one", field="tools"
            )
        hint = hints[parameter.name]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    # A struct takes no mutable default that is not empty, but a function that makes it.
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: value.copy())
    return value


def _descriptions(function: Callable[..., Any], docstring: str) -> dict[str, str]:
    """Of the parameters, from the docstring's lines ``name: ...``, and from their hints where these say one."""
    described: dict[str, str] = dict(re.findall(r"^[ \t]+(\w+):[ \t]+(.+)$", docstring, re.MULTILINE))
    for name, hint in get_type_hints(function, include_extras=True).items():
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


def _with_definitions_of(prefix: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions under names of its own, so that schemas can be put together."""

    def renamed(value: Any) -> Any:
        match value:
            case dict():
                return {
                    key: item.replace("#/$defs/", f"#/$defs/{prefix}.") if key == "$ref" else renamed(item)
                    for key, item in value.items()
                }
            case list():
                return [renamed(item) for item in value]
            case _:
                return value

    changed: dict[str, Any] = renamed(schema)
    if "$defs" in changed:
        changed["$defs"] = {f"{prefix}.{key}": item for key, item in changed["$defs"].items()}
    return changed


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
