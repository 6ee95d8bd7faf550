"""Lookaheads inside a pattern, worked into what follows them."""

from ramet.runtime.grammar.schema.automaton import TooLargeError, combine
from ramet.runtime.grammar.schema.regex_parser import (
    ANY_TEXT,
    Alt,
    Anchor,
    Look,
    Regex,
    Repeat,
    Seq,
    UnsupportedPatternError,
)


def resolve_looks(parts: list[Regex]) -> Regex | None:
    """The sequence ``parts``, which reaches to the text's end, without lookaheads; None: it matches nothing.

    What follows a lookahead must match it too (or must not): the two languages are combined.

    Raises:
        UnsupportedPatternError: one stands in a repetition, or the languages are too large.
    """
    flat: list[Regex] = []
    for part in parts:
        flat += part.items if isinstance(part, Seq) else (part,)
    for index, part in enumerate(flat):
        if not has_look(part):
            continue
        rest = _branches(part, flat[index + 1 :])
        if not rest:
            return None
        return Seq((*flat[:index], rest[0] if len(rest) == 1 else Alt(tuple(rest))))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def has_look(tree: Regex) -> bool:
    match tree:
        case Look():
            return True
        case Seq(items) | Alt(items):
            return any(has_look(item) for item in items)
        case Repeat(item):
            return has_look(item)
        case _:
            return False


def _branches(part: Regex, after: list[Regex]) -> list[Regex]:
    """What ``part``, which holds a lookahead, and ``after`` may be."""
    match part:
        case Alt(items):
            found = [resolve_looks([item, *after]) for item in items]
            return [regex for regex in found if regex is not None]
        case Look(item, negative):
            rest = resolve_looks(after)
            condition = _ahead(item)
            if rest is None:
                return []
            try:
                both = combine((rest,), (condition,)) if negative else combine((rest, condition))
            except TooLargeError:
                raise UnsupportedPatternError(
                    "has a lookahead that is too large to work out", "express it without lookahead"
                ) from None
            return [] if both is None else [both]
        case _:
            raise UnsupportedPatternError("has a lookahead inside a repetition", "express it without lookahead")


def _ahead(tree: Regex) -> Regex:
    """What a text begins with: open behind, or closed by ``$``."""
    items = tree.items if isinstance(tree, Seq) else (tree,)
    if items and items[-1] == Anchor("$"):
        return Seq(items[:-1])
    if has_look(tree):
        raise UnsupportedPatternError("has nested lookaheads", "express it without them")
    if isinstance(tree, Alt):
        return Alt(tuple(_ahead(item) for item in tree.items))
    return Seq((*items, ANY_TEXT)) if items else ANY_TEXT
