"""What a call's text becomes as a value, and the constraint that makes sure that it can."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from ramet.lang.ir import Parse
from ramet.lang.pydantic_schema import pydantic_schema
from ramet.lang.pydantic_types import PydanticModel, PydanticValue, pydantic_adapter
from ramet.lang.times import NAIVE_TIME, with_times
from ramet.runtime.protocol import Choice, GrammarSpec, InvalidRequestError, JsonSchema, Regex
from ramet.runtime.protocol.nesting import MAX_NESTING, is_nested_within, json_is_nested_within


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like, where it stops besides, and how it is read."""

    grammar: GrammarSpec | None = None
    stop_regex: tuple[str, ...] = ()
    parse: Parse = str


@dataclass(frozen=True, slots=True)
class JsonAs:
    """Reads JSON text as an instance of ``type``. ``adapter``: pydantic's, where it is the one to read it."""

    type: Any
    adapter: Any = None

    def __call__(self, text: str) -> object:
        # pydantic's and msgspec's errors are ValueErrors both.
        if self.adapter is not None:
            value: object = self.adapter.validate_json(text)
            return value
        if isinstance(self.type, PydanticModel):
            return self.type.model_validate_json(text)
        return msgspec.json.decode(text, type=self.type, dec_hook=convert_inner)


def convert_inner(type_: Any, value: object) -> object:
    """msgspec's dec_hook for types that it does not know itself: those of pydantic inside of others."""
    # From JSON again: pydantic reads a text as a date where it stands in JSON, but not anywhere.
    if isinstance(type_, PydanticModel):
        return type_.model_validate_json(json.dumps(value))
    if isinstance(type_, type) and issubclass(type_, PydanticValue):
        return type_.read(value)
    raise TypeError(f"{type_!r} is no type that JSON is read as")


def parse_bool(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(f"{text!r} is neither True nor False")
    return text == "True"


def parse_float(text: str) -> float:
    """A full stop that ended the sentence, and with it the answer, is none of the number's."""
    return float(text.removesuffix("."))


def parse_quoted(text: str) -> str:
    """The string inside the quotes, its escapes resolved."""
    return msgspec.json.decode(text, type=str)


# A number ends where the model goes on with something else, whatever that is: the grammar lets it, and the stop
# cuts there. If only digits and the end of the answer were allowed, a model that wants to go on with a word
# would be made to write digits that it did not mean.
_INT = Constraint(Regex(r"[-+]?[0-9]+([^-+0-9][\s\S]*)?"), (r"[^-+0-9]",), int)
_FLOAT = Constraint(
    Regex(r"[-+]?[0-9]+(\.[0-9]+)?([^-+.0-9][\s\S]*|\.([^-+.0-9][\s\S]*)?)?"),
    (r"[^-+.0-9]", r"\.[^-+.0-9]"),
    parse_float,
)
_BOOL = Constraint(Choice(("True", "False")), (), parse_bool)
_STR = Constraint(Regex(r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'), (), parse_quoted)


_TIME = r"(?:[0-9]{1,4}H(?:[0-9]{1,5}M)?(?:[0-9]{1,5}S)?|[0-9]{1,5}M(?:[0-9]{1,5}S)?|[0-9]{1,5}S)"
_TEXTS: Mapping[object, str] = MappingProxyType(
    {
        "decimal": r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?$",
        "base64": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
        "duration": rf"^-?P(?:[0-9]{{1,5}}D(?:T{_TIME})?|T{_TIME})$",
        "partial-time": NAIVE_TIME,
    }
)
"""Formats and encodings that types are stricter about, or that JSON Schema does not know: what can be read."""


def dtype_constraint(dtype: object) -> Constraint:
    """For int, float, bool, or str: a string in double quotes, of which the value is what stands inside. A type
    may be given by its name."""
    # By identity: bool is an int, and 1 == True.
    for known, constraint in ((int, _INT), (float, _FLOAT), (bool, _BOOL), (str, _STR)):
        if dtype is known or dtype == known.__name__:
            return constraint
    raise InvalidRequestError(f"dtype is {dtype!r}; it must be int, float, str or bool", field="dtype")


def json_constraint(schema: object, *, strict: bool = True) -> Constraint:
    """For a JSON Schema as a dict or as text, whose value is the JSON text; or for a type (a pydantic model, a
    dataclass, or another one that msgspec or pydantic knows: ``list[int]``, TypedDict, ``Annotated[int,
    Field(ge=1)]``), whose value is an instance.
    ``strict``: as in JsonSchema.
    """
    match schema:
        case str():
            return Constraint(JsonSchema(_checked(schema), strict=strict))
        case dict() | bool():
            return Constraint(JsonSchema(json_document(schema, "json_schema"), strict=strict))
        case _:
            adapter = pydantic_adapter(schema)
            text = JsonSchema.of(_type_schema(schema, adapter)).schema
            return Constraint(JsonSchema(text, strict=strict), (), JsonAs(schema, adapter))


def type_schema(type_: Any) -> dict[str, Any]:
    """The JSON Schema of a type. Its objects have no other properties than those the type declares, unless the
    type says that it keeps others: what it would throw away again need not be generated.
    """
    return _type_schema(type_, pydantic_adapter(type_))


def _type_schema(type_: Any, adapter: Any) -> dict[str, Any]:
    definitions: dict[str, Any] = {}

    def schema_of_inner(inner: Any) -> dict[str, Any]:
        """pydantic's, its definitions among those of the whole."""
        is_value = isinstance(inner, type) and issubclass(inner, PydanticValue)
        if not is_value and not isinstance(inner, PydanticModel):
            raise TypeError(f"{inner!r} has no JSON schema")
        name = inner.__name__
        json_schema = inner.adapter.json_schema if is_value else inner.model_json_schema
        schema = pydantic_schema(json_schema, f"#/$defs/{name}.{{model}}")
        inner_definitions = schema.pop("$defs", {})
        definitions.update({f"{name}.{key}": value for key, value in inner_definitions.items()})
        return schema

    try:
        if adapter is not None:
            return _closed(pydantic_schema(adapter.json_schema, "#/$defs/{model}"))
        if isinstance(type_, PydanticModel):
            return _closed(pydantic_schema(type_.model_json_schema, "#/$defs/{model}"))
        schema = with_times(msgspec.json.schema(type_, schema_hook=schema_of_inner), type_)
        if definitions:
            schema["$defs"] = {**schema.get("$defs", {}), **definitions}
        return _closed(schema)
    except (TypeError, RuntimeError) as error:
        raise InvalidRequestError(
            f"json_schema is {type_!r}, which has no JSON schema ({error}); give a schema as dict or text, "
            "a pydantic model or a dataclass",
            field="json_schema",
        ) from None


def _checked(text: str) -> str:
    if not json_is_nested_within(text):
        raise InvalidRequestError(f"json_schema nests more than {MAX_NESTING} levels deep", field="json_schema")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"json_schema is not JSON: {error}", field="json_schema") from None
    if not isinstance(document, dict | bool):
        raise InvalidRequestError(
            f"json_schema is the JSON of a {type(document).__name__}; it must be an object", field="json_schema"
        )
    return text


def json_document(value: dict[str, Any] | bool, field: str) -> str:
    """As compact JSON text, keys in their order. Raises InvalidRequestError by the field's name."""
    if not is_nested_within(value):
        raise InvalidRequestError(
            f"{field} nests more than {MAX_NESTING} levels deep, or holds itself", field=field
        )
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{field} cannot be written as JSON: {error}", field=field) from None


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    closed = {key: _closed_value(value) for key, value in schema.items()}
    if closed.get("type") == "string" and "pattern" not in closed:
        pattern = _TEXTS.get(closed.get("format")) or _TEXTS.get(closed.get("contentEncoding"))
        if pattern is not None:
            closed = {key: value for key, value in closed.items() if key != "format"} | {"pattern": pattern}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _closed_value(value: object) -> object:
    match value:
        case dict():
            return _closed(value)
        case list():
            return [_closed_value(item) for item in value]
        case _:
            return value
