"""Times of day in the JSON Schemas that msgspec writes, which say of many of them that they are any text."""

from typing import Any

from msgspec import inspect

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
# To the microsecond: what is finer is rounded, and past the last second of the last year there is none.
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"

NAIVE_TIME = f"^{_TIME}$"
NAIVE_DATETIME = f"^{_DATE}T{_TIME}$"
"""Without an offset from UTC, where the type refuses one."""

_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)


def with_times(schema: dict[str, Any], type_: Any) -> dict[str, Any]:
    """``schema``, msgspec's of ``type_``, changed so that a datetime or time is one that can be read: of RFC
    3339, with an offset from UTC unless the type refuses one."""
    written = _Written(schema.get("$defs", {}))
    written.visit(schema, inspect.type_info(type_))
    return schema


class _Written:
    """Goes along a schema and the type that it was written from."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._left: list[tuple[Any, inspect.Type]] = []
        self._seen: set[tuple[str, object]] = set()

    def visit(self, schema: Any, info: inspect.Type) -> None:
        self._left.append((schema, info))
        while self._left:
            schema, info = self._left.pop()
            while isinstance(info, inspect.Metadata):
                info = info.type
            if isinstance(schema, dict):
                self._look(schema, info)

    def _look(self, schema: dict[str, Any], info: inspect.Type) -> None:
        match info:
            case inspect.DateTimeType() | inspect.TimeType():
                _say_time(schema, info)
            case inspect.UnionType(types=types):
                # Of each kind, of texts and of lists, a union has one at most; what is of another kind stays.
                self._left += [(option, one) for option in _options(schema) for one in types]
            case inspect.CollectionType(item_type=item):
                self._left.append((schema.get("items"), item))
            case inspect.TupleType(item_types=items):
                self._left += zip(schema.get("prefixItems", ()), items, strict=False)
            case inspect.DictType(key_type=key, value_type=value):
                self._left += [(schema.get("additionalProperties"), value), (schema.get("propertyNames"), key)]
            case _ if isinstance(info, _FIELDS):
                self._look_at_fields(schema, info)

    def _look_at_fields(self, schema: dict[str, Any], info: Any) -> None:
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        own: Any = self._definitions.get(name)
        # Of several structs in a union, the one that this is of.
        if not _is_of(own, info) or (name, info.cls) in self._seen:
            return
        self._seen.add((name, info.cls))
        properties, items = own.get("properties", {}), own.get("prefixItems", [])
        self._left += [(properties.get(field.encode_name), field.type) for field in info.fields]
        # A struct that has a tag says it first.
        fields = info.fields[max(0, len(info.fields) - len(items)) :]
        self._left += zip(items[len(items) - len(fields) :], [field.type for field in fields], strict=True)


def _options(schema: dict[str, Any]) -> list[Any]:
    """Structs that a tag tells apart are a union of their own within the union."""
    return [
        option
        for outer in schema.get("anyOf", [schema])
        for option in (outer.get("anyOf", [outer]) if isinstance(outer, dict) else ())
    ]


def _is_of(definition: Any, info: Any) -> bool:
    """A generic class is followed by its arguments."""
    cls = getattr(info.cls, "__origin__", info.cls)
    return definition is not None and str(definition.get("title")).partition("[")[0] == cls.__name__


def _say_time(schema: dict[str, Any], info: inspect.DateTimeType | inspect.TimeType) -> None:
    if schema.get("type") != "string" or {"enum", "pattern", "format"} & schema.keys():
        return
    is_day = isinstance(info, inspect.DateTimeType)
    if info.tz is False:
        schema["pattern"] = NAIVE_DATETIME if is_day else NAIVE_TIME
    else:
        schema["format"] = "date-time" if is_day else "time"
