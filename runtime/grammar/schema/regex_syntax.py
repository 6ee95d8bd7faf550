"""Regular expressions of ECMA-262, as far as they are regular: parsed, freed of anchors, written out plainly.

A JSON Schema pattern is searched for, not matched. ``parse_pattern`` answers what the *whole* string must
match, with every class written out: engines that read ``\\d``, ``.`` or a missing ``^`` differently then agree.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ramet.runtime.grammar.schema.charset import EVERYTHING, CharSet
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS, SchemaLimits
from ramet.runtime.grammar.schema.regex_look import has_look, resolve_looks
from ramet.runtime.grammar.schema.regex_parser import (
    ANY_TEXT,
    EMPTY,
    Alt,
    Anchor,
    Chars,
    Look,
    Regex,
    Repeat,
    Seq,
    UnsupportedPatternError,
    parse,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the whole string must match (all of ``required``) and must not match (any of ``forbidden``)."""

    required: tuple[Regex, ...]
    forbidden: tuple[Regex, ...] = ()


def parse_pattern(pattern: str, limits: SchemaLimits = DEFAULT_LIMITS) -> Pattern:
    """``pattern`` as a search, like JSON Schema's.

    A lookahead at the start, behind ``^``, is a condition of its own; others are worked into what follows them.

    Raises:
        UnsupportedPatternError: it is no regular expression, not regular, or exceeds a limit.
    """
    tree = parse(pattern, limits)
    required: list[Regex] = []
    forbidden: list[Regex] = []
    if isinstance(tree, Seq) and len(tree.items) > 1 and tree.items[0] == Anchor("^"):
        rest = list(tree.items[1:])
        while rest and isinstance(look := rest[0], Look):
            condition = _whole(Seq((Anchor("^"), look.item)))
            (forbidden if look.negative else required).append(condition)
            rest.pop(0)
        tree = Seq((Anchor("^"), *rest))
    main = _whole(tree)
    if main != ANY_TEXT or not (required or forbidden):
        required.append(main)
    return Pattern(tuple(required), tuple(forbidden))


def parse_whole(pattern: str, limits: SchemaLimits = DEFAULT_LIMITS) -> Regex:
    """``pattern`` as a full match. Raises UnsupportedPatternError as ``parse_pattern`` does."""
    return _whole(Seq((Anchor("^"), parse(pattern, limits), Anchor("$"))))


def single_text(regex: Regex) -> str | None:
    """The one text that ``regex`` matches; None: it matches others too, or none."""
    items = regex.items if isinstance(regex, Seq) else (regex,)
    letters = [item.chars for item in items if isinstance(item, Chars)]
    if len(letters) < len(items) or any(len(chars) != 1 or chars[0][0] != chars[0][1] for chars in letters):
        return None
    return "".join(chr(chars[0][0]) for chars in letters)


def literal(text: str) -> Regex:
    """Matches ``text`` alone."""
    return Seq(tuple(Chars(((ord(character), ord(character)),)) for character in text))


def write(regex: Regex, narrowed: Callable[[CharSet], CharSet] | None = None) -> str:
    """``regex`` as a pattern that matches from the start to the end: ``^(?:...)$``.

    In the syntax that ECMA-262, Python, Rust and the grammar engines share. Each class of characters is written
    as what ``narrowed`` makes of it.
    """
    text = _Writer(narrowed).text(regex, 0)
    return f"^{text}$" if not isinstance(regex, Alt) else f"^(?:{text})$"


def _whole(tree: Regex) -> Regex:
    """The search ``tree`` as a full match: anchors at its ends are resolved, open ends take any text."""
    branches = []
    for starts, left in _resolve(tree, first=True):
        for ends, both in _resolve(left, first=False):
            _refuse_inner(both)
            body = both.items if isinstance(both, Seq) else (both,)
            parts = [*(() if starts else (ANY_TEXT,)), *body, *(() if ends else (ANY_TEXT,))]
            if any(has_look(part) for part in parts):
                plain = resolve_looks(parts)
                if plain is not None:
                    branches.append(plain)
            else:
                branches.append(_seq(tuple(_absorbed(parts))))
    if not branches:
        raise UnsupportedPatternError("matches no text at all", "correct it")
    return ANY_TEXT if ANY_TEXT in branches else _alt(branches)


def has_inner_anchor(tree: Regex) -> bool:
    """It has a word boundary, or an anchor that its ends do not resolve: nothing plain says what it does."""
    try:
        for _, left in _resolve(tree, first=True):
            for _, both in _resolve(left, first=False):
                _refuse_inner(both)
    except UnsupportedPatternError:
        return True
    return False


def _absorbed(parts: list[Regex]) -> list[Regex]:
    """``parts`` in sequence, where any text at an open end takes in what may be missing beside it."""
    for from_start in (True, False):
        edge, inner = (0, 1) if from_start else (-1, -2)
        while len(parts) > 1 and parts[edge] == ANY_TEXT and isinstance(neighbour := parts[inner], Repeat):
            low = neighbour.low
            if low == neighbour.high:
                break
            # X{2,5} beside any text is X{2}: the rest is text too.
            parts[inner] = Repeat(neighbour.item, low, low)
            if low == 0:
                del parts[inner]
            elif low == 1:
                parts[inner] = neighbour.item
    return parts


def _resolve(tree: Regex, *, first: bool) -> list[tuple[bool, Regex]]:
    """The alternatives of ``tree``: whether each began with ``^`` (ended with ``$``), and the rest of it."""
    anchor = "^" if first else "$"
    match tree:
        case Anchor(kind) if kind == anchor:
            return [(True, EMPTY)]
        case Alt(items) if any(_has_anchor(item, anchor) for item in items):
            return [pair for item in items for pair in _resolve(item, first=first)]
        case Seq(items) if items and _has_anchor(items[0] if first else items[-1], anchor):
            edge, rest = (items[0], items[1:]) if first else (items[-1], items[:-1])
            result = []
            for anchored, remains in _resolve(edge, first=first):
                joined = _seq((remains, *rest) if first else (*rest, remains))
                if anchored or remains != EMPTY:
                    # A second anchor behind the first, as in ^^a, says nothing new.
                    again = (
                        _resolve(joined, first=first) if anchored and remains == EMPTY else [(False, joined)]
                    )
                    result += [(anchored or more, inner) for more, inner in again]
                else:
                    result += _resolve(joined, first=first)
            return result
        case Repeat(item, 1, 1):
            return _resolve(item, first=first)
        case _:
            return [(False, tree)]


def _has_anchor(tree: Regex, anchor: str) -> bool:
    match tree:
        case Anchor(kind):
            return kind == anchor
        case Seq(items) | Alt(items):
            return any(_has_anchor(item, anchor) for item in items)
        case Repeat(item):
            return _has_anchor(item, anchor)
        case _:
            return False


def _refuse_inner(tree: Regex) -> None:
    match tree:
        case Anchor("b" | "B"):
            raise UnsupportedPatternError("has a word boundary", "express it without \\b")
        case Anchor(kind):
            raise UnsupportedPatternError(
                f"has the anchor {kind} inside it", "put anchors at the start and the end of the pattern only"
            )
        case Look(item):
            ahead = item.items if isinstance(item, Seq) else (item,)
            _refuse_inner(Seq(ahead[:-1] if ahead and ahead[-1] == Anchor("$") else ahead))
        case Seq(items) | Alt(items):
            for item in items:
                _refuse_inner(item)
        case Repeat(item):
            _refuse_inner(item)
        case _:
            return


def _seq(items: tuple[Regex, ...]) -> Regex:
    flat: list[Regex] = []
    for item in items:
        for part in item.items if isinstance(item, Seq) else (item,):
            if part != ANY_TEXT or not flat or flat[-1] != ANY_TEXT:
                flat.append(part)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _alt(items: list[Regex]) -> Regex:
    distinct = list(dict.fromkeys(items))
    return distinct[0] if len(distinct) == 1 else Alt(tuple(distinct))


class _Writer:
    """Writes one regex; a class of characters is worked out once however often it stands."""

    def __init__(self, narrowed: Callable[[CharSet], CharSet] | None) -> None:
        self._narrowed = narrowed
        self._classes: dict[CharSet, str] = {}

    def text(self, tree: Regex, level: int) -> str:
        """``level`` 0: an alternation may stand bare; 1: a sequence may; 2: a single atom is needed."""
        match tree:
            case Chars(chars):
                return self._class(chars)
            case Seq(items):
                text = "".join([self.text(item, 1) for item in items])
                return f"(?:{text})" if level > 1 and len(items) != 1 else text
            case Alt(items):
                text = "|".join([self.text(item, 1) for item in items])
                return f"(?:{text})" if level > 0 else text
            case Repeat(item, low, high):
                text = self.text(item, 2) + _write_bounds(low, high)
                return f"(?:{text})" if level > 1 else text
            case _:
                raise AssertionError(f"{tree!r} is resolved before it is written")

    def _class(self, chars: CharSet) -> str:
        if chars not in self._classes:
            self._classes[chars] = _write_chars(self._narrowed(chars) if self._narrowed else chars)
        return self._classes[chars]


def _write_bounds(low: int, high: int | None) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in simple:
        return simple[(low, high)]
    if high is None:
        return f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


def _write_chars(chars: CharSet) -> str:
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _escape(chars[0][0])
    if chars == EVERYTHING:
        return r"[\s\S]"
    parts = []
    for low, high in chars:
        if low == high:
            parts.append(_escape(low))
        elif high == low + 1:
            parts.append(_escape(low) + _escape(high))
        else:
            parts.append(f"{_escape(low)}-{_escape(high)}")
    return f"[{''.join(parts)}]"


def _escape(code_point: int) -> str:
    character = chr(code_point)
    if (character.isalnum() and code_point < 128) or character in " _,:;<>=!@%'\"`~":
        return character
    if 0x20 < code_point < 0x7F:
        return "\\" + character
    if code_point < 0x80:
        return f"\\x{code_point:02x}"
    return character
