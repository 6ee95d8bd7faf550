"""Types that pydantic reads: its own, and those whose hints say something that it alone understands."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import msgspec

from ramet.runtime.protocol import InvalidRequestError

MAX_TYPES = 10_000
"""Types that one is looked through for; a generic one can hold itself with ever other arguments."""

_LIBRARIES = ("pydantic", "annotated_types")
_META_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


@runtime_checkable
class PydanticModel(Protocol):
    """pydantic's BaseModel class, of which ramet knows these methods and no more."""

    __name__: str

    def model_json_schema(self, *, ref_template: str = ..., schema_generator: Any = ...) -> dict[str, Any]: ...

    def model_validate_json(self, json_data: str) -> object: ...


class PydanticValue:
    """Stands for a type that pydantic reads, where msgspec reads what is around it. Made by ``stand_in``."""

    adapter: ClassVar[Any]

    def __init__(self, value: object) -> None:
        self.value = value

    @classmethod
    def read(cls, value: object) -> "PydanticValue":
        """From what JSON was read as. Raises pydantic's ValidationError, a ValueError."""
        return cls(cls.adapter.validate_json(json.dumps(value)))


def stand_in(type_: Any, name: str) -> Any:
    """``type_`` itself where msgspec can read it, else a PydanticValue class of that name."""
    adapter = pydantic_adapter(type_)
    return type_ if adapter is None else type(name, (PydanticValue,), {"adapter": adapter})


def pydantic_adapter(type_: Any) -> Any:
    """pydantic's TypeAdapter, for a type that has constraints or validators of pydantic or annotated-types
    anywhere; None: msgspec reads all that the type says, or it is a model, which reads itself.

    Raises:
        InvalidRequestError: pydantic is not installed, or cannot read a part of the type, or a hint is not
            known where it stands.
    """
    if isinstance(type_, PydanticModel):
        return None
    try:
        found = list(_parts(type_))
    except NameError as error:
        raise _refused(f"has a type hint that is not known where it is defined: {error}", type_) from None
    if not any(_is_pydantics(part) for part in found):
        return None
    for part in found:
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            raise _refused(
                f"holds the msgspec struct {part.__name__} next to what pydantic alone reads; make it a "
                "dataclass, or write msgspec.Meta instead",
                type_,
            )
        if isinstance(part, msgspec.Meta) and any(getattr(part, name) is not None for name in _META_LIMITS):
            raise _refused(f"holds {part!r} next to what pydantic alone reads; write pydantic.Field", type_)
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise _refused("has constraints that pydantic reads; install it: pip install pydantic", type_) from None
    try:
        return TypeAdapter(type_)
    except (TypeError, RuntimeError, NameError) as error:
        raise _refused(f"cannot be read by pydantic: {error}", type_) from None


def is_pydantic_default(value: object) -> bool:
    """Whether it is ``pydantic.Field(...)``, written where a default stands."""
    return _is_of_library(value) and hasattr(value, "get_default")


def _refused(why: str, type_: Any) -> InvalidRequestError:
    return InvalidRequestError(f"json_schema is {type_!r}, which {why}", field="json_schema")


def _is_pydantics(part: object) -> bool:
    if isinstance(part, type) and isinstance(part, PydanticModel):
        return False
    marks = ("__pydantic_validator__", "__get_pydantic_core_schema__", "__pydantic_config__")
    return any(hasattr(part, mark) for mark in marks) or _is_of_library(part)


def _is_of_library(part: object) -> bool:
    return not isinstance(part, type) and type(part).__module__.partition(".")[0] in _LIBRARIES


def _parts(type_: Any) -> Iterator[object]:
    """Every type that it is made of, itself first, and all that its hints are annotated with. A model's own
    parts are the model's business."""
    # By identity, as not all of them can be hashed; each is kept, or another could get its id.
    seen: dict[int, object] = {}
    left = [type_]
    while left and len(seen) < MAX_TYPES:
        part = left.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            yield part
            left += _inside(part)


def _inside(part: Any) -> list[Any]:
    if get_origin(part) is Annotated:
        return [part.__origin__, *part.__metadata__]
    inside = [*get_args(part), getattr(part, "__value__", None), getattr(part, "__supertype__", None)]
    origin = get_origin(part) or part
    if _has_fields(origin):
        inside += get_type_hints(origin, include_extras=True).values()
    if dataclasses.is_dataclass(origin):
        inside += [field.default for field in dataclasses.fields(origin) if is_pydantic_default(field.default)]
    return [one for one in inside if one is not None]


def _has_fields(type_: Any) -> bool:
    if not isinstance(type_, type) or isinstance(type_, PydanticModel):
        return False
    marks = ("__dataclass_fields__", "__required_keys__", "_fields", "__struct_fields__", "__attrs_attrs__")
    return any(hasattr(type_, mark) for mark in marks)
