"""Keywords of numbers and strings."""

from fractions import Fraction

from ramet.runtime.grammar.schema import numbers
from ramet.runtime.grammar.schema import strings as string_rules
from ramet.runtime.grammar.schema.context import Context, count, number, wrong
from ramet.runtime.grammar.schema.formats import KNOWN, MAX_LENGTHS, NARROWED, REFUSED, format_regex
from ramet.runtime.grammar.schema.shapes import Number, String, number_of

NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
STRING_KEYWORDS = ("minLength", "maxLength", "pattern", "format")

_EXACT = 2**53
"""Engines keep bounds as doubles, which hold integers exactly up to this."""


def translate_number(
    schema: dict[str, object], pointer: str, context: Context, *, integer: bool
) -> tuple[Number, ...]:
    """The numbers that the number keywords allow."""
    low = high = None
    low_open = high_open = False
    if context.draft == 4 or isinstance(schema.get("exclusiveMinimum"), bool):
        low_open = _flag(schema, "exclusiveMinimum", pointer)
    if context.draft == 4 or isinstance(schema.get("exclusiveMaximum"), bool):
        high_open = _flag(schema, "exclusiveMaximum", pointer)
    low = _bound(schema, "minimum", pointer, context)
    high = _bound(schema, "maximum", pointer, context)
    value = Number(integer=integer, low=low, low_open=low_open, high=high, high_open=high_open, at=pointer)
    result = numbers.simplify(value)
    if not isinstance(schema.get("exclusiveMinimum", True), bool):
        bound = _bound(schema, "exclusiveMinimum", pointer, context)
        result = _and(result, Number(low=bound, low_open=True, at=pointer))
    if not isinstance(schema.get("exclusiveMaximum", True), bool):
        bound = _bound(schema, "exclusiveMaximum", pointer, context)
        result = _and(result, Number(high=bound, high_open=True, at=pointer))
    multiple = number(schema, "multipleOf", pointer)
    if multiple is not None:
        if multiple <= 0:
            raise wrong(pointer, "multipleOf", multiple, "a number above 0")
        result = _and(result, Number(multiple=number_of(multiple), at=pointer))
    return result


def translate_string(schema: dict[str, object], pointer: str, context: Context) -> tuple[String, ...]:
    """The strings that the string keywords allow."""
    low = count(schema, "minLength", pointer, context.limits.max_length) or 0
    high = count(schema, "maxLength", pointer, context.limits.max_length)
    result = string_rules.simplify(String(low=low, high=high, at=pointer))
    if "pattern" in schema:
        pattern = context.pattern(schema["pattern"], pointer, "pattern")
        if pattern is not None:
            condition = String(required=pattern.required, forbidden=pattern.forbidden, at=pointer)
            result = _and_string(result, condition)
    if "format" in schema:
        result = _and_string(result, _format(schema["format"], pointer, context))
    return result


def _format(name: object, pointer: str, context: Context) -> String:
    if not isinstance(name, str):
        raise wrong(pointer, "format", name, "a string")
    if name in REFUSED:
        context.refuse(
            pointer,
            "format",
            f"the format {name} has no regular expression",
            "remove it, or use a pattern instead",
        )
        return String()
    if name not in KNOWN:
        context.note(f"#{pointer}/format: {name!r} is no format of JSON Schema; it is an annotation only")
        return String()
    if name in NARROWED:
        context.note(f"#{pointer}/format: of {name}, a subset is generated: {NARROWED[name]}")
    return String(required=(format_regex(name),), high=MAX_LENGTHS.get(name), at=pointer)


def _bound(schema: dict[str, object], keyword: str, pointer: str, context: Context) -> Fraction | None:
    value = number(schema, keyword, pointer)
    if value is None:
        return None
    if abs(value) > _EXACT:
        context.refuse(
            pointer,
            keyword,
            f"the bound {value} is beyond 2**53, where engines round",
            "use a bound within 2**53",
        )
        return None
    return number_of(value)


def _flag(schema: dict[str, object], keyword: str, pointer: str) -> bool:
    value = schema.get(keyword, False)
    if not isinstance(value, bool):
        raise wrong(pointer, keyword, value, "true or false in draft 4")
    return value


def _and(left: tuple[Number, ...], right: Number) -> tuple[Number, ...]:
    return tuple(both for item in left for both in numbers.intersect(item, right))


def _and_string(left: tuple[String, ...], right: String) -> tuple[String, ...]:
    return tuple(both for item in left for both in string_rules.intersect(item, right))
