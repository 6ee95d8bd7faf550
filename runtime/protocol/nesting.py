"""How deep values and JSON texts are nested, told without recursion.

Whatever parses, writes or copies nested values recurses, level by level, on whatever thread that is. So depth
is bounded here first, for what comes from a user, a model or a tool.
"""

import re
from collections.abc import Iterable, Mapping

MAX_NESTING = 200
"""Levels of lists and objects, where no caller has a limit of its own."""
MAX_GROUP_NESTING = 100
"""Groups inside of groups of a stop regex. ``re`` compiles by recursion: how deep it gets depends on the stack
that it is called from, and the engine, which checks again, must never refuse what its client took."""

_PLAIN = (str, bytes, int, float, type(None))
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{}\]]', re.DOTALL)
"""Possessive, so that it never goes back; a string that does not end takes in the rest of the text."""
_STRING_OR_BRACKET_OF_BYTES = re.compile(_STRING_OR_BRACKET.pattern.encode(), re.DOTALL)


def is_nested_within(value: object, levels: int = MAX_NESTING) -> bool:
    """Whether no list, set, mapping or record of ``value`` lies deeper. One that holds itself does.

    A text or a number is of level 0, a list of them, or an empty one, of level 1. Nothing looks inside of
    objects other than dataclasses, msgspec's structs and attrs' classes: each is one level.
    """
    layer = _nested_of([value])
    for _ in range(levels):
        if not layer:
            return True
        layer = _nested_of(inner for outer in layer for inner in _contents(outer))
    return not layer


def json_is_nested_within(text: str | bytes, levels: int = MAX_NESTING) -> bool:
    """Whether a JSON text opens no more than ``levels`` brackets at once; brackets in strings don't count."""
    if isinstance(text, str):
        if text.count("[") + text.count("{") <= levels:
            return True
        matches: Iterable[str] = (match[0] for match in _STRING_OR_BRACKET.finditer(text))
    else:
        if text.count(b"[") + text.count(b"{") <= levels:
            return True
        matches = (match[0][:1].decode() for match in _STRING_OR_BRACKET_OF_BYTES.finditer(text))
    depth = 0
    for found in matches:
        if found in ("[", "{"):
            depth += 1
            if depth > levels:
                return False
        elif found in ("]", "}"):
            depth -= 1
    return True


def groups_nested(pattern: str) -> int:
    """How deep the groups of a regular expression are nested (a bracket that stands for itself in a set counts
    too)."""
    depth = deepest = 0
    for bracket in re.findall(r"\\.|[()]", pattern, re.DOTALL):
        depth += (bracket == "(") - (bracket == ")")
        deepest = max(deepest, depth)
    return deepest


def _nested_of(values: Iterable[object]) -> list[object]:
    """Those that may hold others, each once, however often it is referred to."""
    return list({id(value): value for value in values if not isinstance(value, _PLAIN)}.values())


def _contents(value: object) -> Iterable[object]:
    """What an encoder looks into."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    of_type = type(value)
    names = [attribute.name for attribute in getattr(of_type, "__attrs_attrs__", ())]
    names += getattr(of_type, "__struct_fields__", ())
    names += getattr(of_type, "__dataclass_fields__", ())
    return [getattr(value, name, None) for name in names]
