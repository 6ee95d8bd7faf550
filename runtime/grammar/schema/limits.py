"""Limits that hold before anything parses or compiles a constraint. Nothing here recurses."""

import re
from dataclasses import dataclass

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.nesting import json_is_nested_within

_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """What a schema, a regular expression or a grammar may cost. Sizes are counted in the input as given."""

    max_bytes: int = 512 * 1024
    """Of the whole text, in UTF-8."""
    max_nesting: int = 64
    """Levels of brackets in the JSON text, or of groups in a pattern or grammar."""
    max_pattern_length: int = 4096
    max_repeat: int = 10_000
    """The product of nested repetition bounds in a pattern, and each single bound."""
    max_enum: int = 4_096
    """Values of one enum, and options of one choice of literals."""
    max_properties: int = 2_000
    """Of one object."""
    max_items: int = 10_000
    """minItems and maxItems, which an engine writes out."""
    max_length: int = 1_000_000
    """minLength and maxLength."""
    max_branches: int = 1_000
    """Of one anyOf, oneOf or allOf."""
    max_definitions: int = 5_000
    max_steps: int = 40_000
    """Of the rewriting; bounds its time."""


DEFAULT_LIMITS = SchemaLimits()


def check_json_text(text: str, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
    """Raises InvalidRequestError where a JSON text is larger or deeper than allowed, before it is parsed."""
    _check_size("the schema", text, limits)
    if not json_is_nested_within(text, limits.max_nesting):
        raise InvalidRequestError(
            f"the schema nests deeper than {limits.max_nesting} levels; "
            "move inner schemas to $defs and refer to them",
            field="grammar",
        )


def check_ebnf(grammar: str, limits: SchemaLimits = DEFAULT_LIMITS) -> None:
    """Raises InvalidRequestError where a GBNF or Lark grammar is too large, too deep or repeats too often."""
    _check_size("the grammar", grammar, limits)
    depth = 0
    index = 0
    quote = ""
    while index < len(grammar):
        character = grammar[index]
        if character == "\\":
            index += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character == '"':
            quote = character
        elif character == "[":
            quote = "]"
        elif character == "(":
            depth += 1
            if depth > limits.max_nesting:
                raise InvalidRequestError(
                    f"the grammar nests groups deeper than {limits.max_nesting}; name inner groups as rules",
                    field="grammar",
                )
        elif character == ")":
            depth = max(0, depth - 1)
        elif character == "{":
            _check_bounds(grammar, index, limits)
        index += 1


def place(text: str, offset: int) -> str:
    """``line 2, column 7``, both from 1."""
    before = text[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"


def _check_bounds(grammar: str, start: int, limits: SchemaLimits) -> None:
    """Of a repetition such as ``{1,300}`` that begins at ``start``; other braces pass."""
    end = grammar.find("}", start, start + 64)
    if end < 0:
        return
    bounds = [number.strip() for number in grammar[start + 1 : end].replace("~", ",").split(",")]
    if len(bounds) == 2 and all(map(_is_small, bounds)) and int(bounds[0]) > int(bounds[1]):
        raise InvalidRequestError(
            f"the count {{{bounds[0]},{bounds[1]}}} in the grammar, at {place(grammar, start)}, has a "
            "lowest number above its highest; exchange them",
            field="grammar",
        )
    for digits in bounds:
        if digits.isdecimal() and (len(digits) > 9 or int(digits) > limits.max_repeat):
            raise InvalidRequestError(
                f"the grammar repeats {digits[:20]} times; the limit is {limits.max_repeat}: lower the bound",
                field="grammar",
            )


def _is_small(digits: str) -> bool:
    return digits.isdecimal() and len(digits) < 10


def _check_size(what: str, text: str, limits: SchemaLimits) -> None:
    # The length in characters first: it bounds the work of encoding.
    size = len(text) if len(text) > limits.max_bytes else len(text.encode("utf-8", "surrogatepass"))
    if size > limits.max_bytes:
        raise InvalidRequestError(
            f"{what} has {size} bytes; the limit is {limits.max_bytes}: shorten it", field="grammar"
        )
    if what == "the grammar" and (half := _SURROGATE.search(text)) is not None:
        raise InvalidRequestError(
            f"{what} holds {half.group()!a} at character {half.start()}, half of a surrogate pair, which no "
            "text has; remove it",
            field="grammar",
        )
    if "\0" in text:
        raise InvalidRequestError(f"{what} holds a NUL character; remove it", field="grammar")
