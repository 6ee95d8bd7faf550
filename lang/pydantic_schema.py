"""The JSON Schema of what pydantic reads, as strict about decimal numbers and times as pydantic itself."""

from collections.abc import Callable
from typing import Any

from ramet.lang.times import NAIVE_DATETIME

MAX_PLACES = 10
"""Decimal places that a multiple of a JSON Schema is written with; engines know no finer ones."""


def pydantic_schema(json_schema: Callable[..., dict[str, Any]], ref_template: str) -> dict[str, Any]:
    """What ``json_schema`` writes (a model's ``model_json_schema`` or a TypeAdapter's method), in which a
    Decimal is a number of the digits that are read, and a datetime without a zone has none.

    pydantic's own schema lets any text stand for a Decimal, and numbers of any number of digits: an answer that
    it permits, the model would refuse.
    """
    from pydantic.json_schema import GenerateJsonSchema

    class ExactSchema(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            # Of a number and a text.
            written = super().decimal_schema(schema)
            number = next((part for part in written.get("anyOf", ()) if part.get("type") == "number"), None)
            if number is None:
                return written
            return decimal_numbers(number, schema.get("max_digits"), schema.get("decimal_places"))

        def datetime_schema(self, schema: Any) -> dict[str, Any]:
            if schema.get("tz_constraint") == "naive":
                return {"type": "string", "pattern": NAIVE_DATETIME}
            return super().datetime_schema(schema)

    return dict(json_schema(ref_template=ref_template, schema_generator=ExactSchema))


def decimal_numbers(number: dict[str, Any], max_digits: int | None, places: int | None) -> dict[str, Any]:
    """The schema ``number``, of at most ``max_digits`` digits, ``places`` of them behind the point."""
    if max_digits is None:
        return number if places is None else _rounded(number, places)
    if places is not None:
        return _below(_rounded(number, min(places, max_digits)), max_digits - min(places, max_digits))
    # The more digits stand behind the point, the fewer before it.
    splits = range(min(max_digits, MAX_PLACES) + 1)
    return {"anyOf": [_below(_rounded(number, behind), max_digits - behind) for behind in splits]}


def _rounded(number: dict[str, Any], places: int) -> dict[str, Any]:
    """To so many decimal places. A multiple that is asked for already is one of at most as many."""
    if "multipleOf" in number:
        return number
    return {**number, "multipleOf": float(f"1e-{min(places, MAX_PLACES)}") if places else 1}


def _below(number: dict[str, Any], num_digits: int) -> dict[str, Any]:
    """Of at most so many digits before the point, unless a bound is narrower already."""
    limit = 10**num_digits
    lows = [number[key] for key in ("minimum", "exclusiveMinimum") if key in number]
    highs = [number[key] for key in ("maximum", "exclusiveMaximum") if key in number]
    narrowed = dict(number)
    if limit < 2**53:
        if not lows or max(lows) <= -limit:
            narrowed = {key: value for key, value in narrowed.items() if key != "minimum"}
            narrowed["exclusiveMinimum"] = -limit
        if not highs or min(highs) >= limit:
            narrowed = {key: value for key, value in narrowed.items() if key != "maximum"}
            narrowed["exclusiveMaximum"] = limit
    return narrowed
