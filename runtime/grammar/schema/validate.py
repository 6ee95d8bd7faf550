"""Validation of a finished value, for schemas of which a grammar enforces only a part."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from ramet.runtime.grammar.schema.assertions import AssertingSearch
from ramet.runtime.grammar.schema.automaton import TooLargeError, matches
from ramet.runtime.grammar.schema.document import Document, load, step
from ramet.runtime.grammar.schema.formats import format_regex
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS, SchemaLimits
from ramet.runtime.grammar.schema.regex_look import has_look
from ramet.runtime.grammar.schema.regex_parser import UnsupportedPatternError, parse
from ramet.runtime.grammar.schema.regex_syntax import Pattern, has_inner_anchor, parse_pattern
from ramet.runtime.grammar.schema.shapes import number_of
from ramet.runtime.protocol import UnsupportedConstraintError
from ramet.runtime.protocol.nesting import MAX_NESTING, json_is_nested_within

if TYPE_CHECKING:
    from jsonschema import ValidationError

_CLASSES = {
    4: "Draft4Validator",
    6: "Draft6Validator",
    7: "Draft7Validator",
    2019: "Draft201909Validator",
    2020: "Draft202012Validator",
}
MAX_PROBLEMS = 5
_POINTER = "relative-json-pointer"


class Validator:
    """Says what is wrong with a value, by jsonschema with its format checks. Immutable, for any thread.

    Patterns are matched by automata, in time linear in the text: neither a model nor the author of a schema
    can make it hang. Two things are judged as the specification says where jsonschema does not: multiples in
    decimals (1.11 is one of 0.01), and relative JSON pointers of several digits ("100").
    """

    def __init__(self, schema: str, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
        """
        Raises:
            InvalidRequestError: ``schema`` is no JSON schema or exceeds a limit.
            UnsupportedConstraintError: it has a pattern that cannot be checked in bounded time.
        """
        import jsonschema

        document = load(schema, limits)
        self._patterns = {text: _search(text, pointer, limits) for pointer, text in _patterns(document)}
        base = getattr(jsonschema, _CLASSES[document.draft])
        listed = {"items": partial(_items, base.VALIDATORS["items"])} if document.draft == 2020 else {}
        extended = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
            base,
            {
                **listed,
                "pattern": self._pattern,
                "patternProperties": self._pattern_properties,
                "additionalProperties": self._additional_properties,
                "multipleOf": _multiple_of,
            },
        )
        self._validator = extended(document.root, format_checker=_format_checker(base.FORMAT_CHECKER))

    def problems(self, text: str) -> list[str]:
        """What is wrong with the JSON ``text``, at most MAX_PROBLEMS items; empty: it is valid."""
        if not json_is_nested_within(text):
            return [f"nested more than {MAX_NESTING} levels deep"]
        try:
            value = json.loads(text)
        except ValueError as error:
            return [f"no JSON: {error}"]
        found = islice(self._validator.iter_errors(value), MAX_PROBLEMS)
        return [f"{problem.json_path}: {problem.message[:300]}" for problem in found]

    def _finds(self, pattern: str, text: str) -> bool:
        return self._patterns[pattern](text)

    def _pattern(self, _: Any, pattern: str, value: object, schema: Any) -> "Iterator[ValidationError]":
        from jsonschema import ValidationError

        if isinstance(value, str) and not self._finds(pattern, value):
            yield ValidationError(f"{value!r} does not match {pattern!r}")

    def _pattern_properties(
        self, validator: Any, patterns: Mapping[str, Any], value: object, schema: Any
    ) -> "Iterator[ValidationError]":
        if isinstance(value, dict):
            for pattern, inner in patterns.items():
                for name, member in value.items():
                    if self._finds(pattern, name):
                        yield from validator.descend(member, inner, path=name, schema_path=pattern)

    def _additional_properties(
        self, validator: Any, inner: Any, value: object, schema: Mapping[str, Any]
    ) -> "Iterator[ValidationError]":
        if not isinstance(value, dict):
            return
        patterns = schema.get("patternProperties", {})
        for name, member in value.items():
            if name not in schema.get("properties", {}) and not any(
                self._finds(text, name) for text in patterns
            ):
                yield from validator.descend(member, inner, path=name)


def _items(
    one_for_all: Any, validator: Any, items: Any, value: object, schema: Mapping[str, Any]
) -> "Iterator[ValidationError]":
    """``items``; a list of them, as earlier drafts have it, is read in 2020-12 too, here as where it is
    enforced."""
    if not isinstance(items, list):
        yield from one_for_all(validator, items, value, schema)
    elif isinstance(value, list):
        rest = [schema.get("additionalItems", True)] * max(0, len(value) - len(items))
        for index, (item, inner) in enumerate(zip(value, [*items, *rest], strict=False)):
            yield from validator.descend(item, inner, path=index)


def _multiple_of(_: Any, factor: Any, value: object, schema: Any) -> "Iterator[ValidationError]":
    from jsonschema import ValidationError

    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return
    if number_of(value) % number_of(factor):
        yield ValidationError(f"{value!r} is not a multiple of {factor}")


def _format_checker(base: Any) -> Any:
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    checker.checkers = dict(base.checkers)
    if _POINTER in checker.checkers:
        checker.checkers[_POINTER] = (_is_relative_pointer, ())
    return checker


def _is_relative_pointer(value: object) -> bool:
    return not isinstance(value, str) or matches(format_regex(_POINTER), value)


def _meets(pattern: Pattern, text: str) -> bool:
    return all(matches(regex, text) for regex in pattern.required) and not any(
        matches(regex, text) for regex in pattern.forbidden
    )


def _patterns(document: Document) -> Iterator[tuple[str, str]]:
    """Every string that may be a pattern, with its pointer."""
    stack: list[tuple[str, object]] = [("", document.root)]
    while stack:
        pointer, part = stack.pop()
        if isinstance(part, dict):
            if isinstance(text := part.get("pattern"), str):
                yield pointer, text
            if isinstance(members := part.get("patternProperties"), dict):
                yield from ((step(pointer, "patternProperties"), text) for text in members)
            stack += [(step(pointer, key), value) for key, value in part.items()]
        elif isinstance(part, list):
            stack += [(step(pointer, index), item) for index, item in enumerate(part)]


def _search(text: str, pointer: str, limits: SchemaLimits) -> Callable[[str], bool]:
    try:
        tree = parse(text, limits)
        if not has_look(tree) and has_inner_anchor(tree):
            return AssertingSearch(tree).finds
        parsed = parse_pattern(text, limits)
        for regex in (*parsed.required, *parsed.forbidden):
            matches(regex, "")
    except UnsupportedPatternError as error:
        why, remedy = error.why, error.remedy
    except TooLargeError:
        why, remedy = "is too large to match in bounded time", "shorten it"
    else:
        return partial(_meets, parsed)
    raise UnsupportedConstraintError(
        f"the schema cannot be enforced at #{pointer}: the pattern {text[:120]!r} {why}, and finished answers "
        f"cannot be checked for it in bounded time either, so strict=false is of no use here; {remedy}",
        field="grammar",
    )
