"""What translating a schema reads and reports to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.document import Document, Draft, step
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_parser import UnsupportedPatternError
from ramet.runtime.grammar.schema.regex_syntax import Pattern, parse_pattern
from ramet.runtime.grammar.schema.shapes import Node
from ramet.runtime.protocol import InvalidRequestError


@dataclass(slots=True)
class Context:
    """One translation. ``issues`` and ``notes`` grow, each entry once; the rest is read only.

    ``approximate``: some constraint is known to be lost, so nothing may be built on a complement.
    """

    document: Document
    algebra: Algebra
    limits: SchemaLimits
    translate: Callable[[object, str], Node]
    approximate: bool = False
    issues: dict[Unsupported, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def draft(self) -> Draft:
        return self.document.draft

    def refuse(self, pointer: str, keyword: str, why: str, remedy: str) -> None:
        """Reports a constraint that the translation leaves out."""
        self.issues.setdefault(Unsupported(pointer, keyword, why, remedy))

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def pattern(self, text: object, pointer: str, keyword: str) -> Pattern | None:
        """The parsed pattern; None, reported, where it cannot be enforced."""
        if not isinstance(text, str):
            raise wrong(pointer, keyword, text, "a regular expression")
        try:
            return parse_pattern(text, self.limits)
        except UnsupportedPatternError as error:
            self.refuse(pointer, keyword, f"the pattern {_short(text)} {error.why}", error.remedy)
            return None


IN_PLACE = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
)
"""Keywords that apply further schemas to the same value."""


def is_alone(schema: dict[str, object], keyword: str) -> bool:
    """Nothing beside ``keyword`` (an unevaluated one) evaluates members or items: it is then additional*."""
    return not (IN_PLACE & schema.keys() or (keyword == "unevaluatedItems" and "contains" in schema))


def wrong(pointer: str, keyword: str, value: object, expected: str) -> InvalidRequestError:
    """The error for a keyword whose value no schema can have."""
    return InvalidRequestError(
        f"#{step(pointer, keyword)} is {_short(repr(value))}; it must be {expected}", field="grammar"
    )


def count(schema: dict[str, object], keyword: str, pointer: str, limit: int) -> int | None:
    """A keyword such as minItems; None: absent."""
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise wrong(pointer, keyword, value, "an integer from 0 on")
    if value > limit:
        raise InvalidRequestError(
            f"#{step(pointer, keyword)} is {int(value)}; the limit is {limit}: lower it", field="grammar"
        )
    return int(value)


def number(schema: dict[str, object], keyword: str, pointer: str) -> int | float | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise wrong(pointer, keyword, value, "a number")
    return value


def strings(value: object, pointer: str, keyword: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong(pointer, keyword, value, "an array of strings")
    return list(value)


def schemas(value: object, pointer: str, keyword: str) -> list[tuple[object, str]]:
    """The subschemas of an array keyword, with their pointers."""
    if not isinstance(value, list) or not value:
        raise wrong(pointer, keyword, value, "an array of schemas, not empty")
    return [(item, step(pointer, keyword, index)) for index, item in enumerate(value)]


def named(value: object, pointer: str, keyword: str) -> dict[str, tuple[object, str]]:
    """The members of an object keyword, with their pointers."""
    if not isinstance(value, dict):
        raise wrong(pointer, keyword, value, "an object")
    return {name: (item, step(pointer, keyword, name)) for name, item in value.items()}


def _short(text: str, length: int = 120) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
