"""The syntax tree of a regular expression of ECMA-262, and its parser."""

from dataclasses import dataclass, field

from ramet.runtime.grammar.schema.charset import (
    DIGITS,
    EVERYTHING,
    LINE_ENDS,
    SPACE,
    WORD,
    CharSet,
    category,
    charset,
    complement,
    union,
)
from ramet.runtime.grammar.schema.limits import SchemaLimits


class UnsupportedPatternError(Exception):
    """A pattern is malformed, not regular or too large: ``why`` and what to do."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}; {remedy}")
        self.why = why
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Chars:
    # These trees are compared and looked up by the thousand: each node keeps its hash, made of its parts'.
    chars: CharSet
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("Chars", self.chars)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Seq:
    items: "tuple[Regex, ...]"
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("Seq", self.items)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Alt:
    items: "tuple[Regex, ...]"
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("Alt", self.items)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Repeat:
    item: "Regex"
    low: int
    high: int | None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("Repeat", self.item, self.low, self.high)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: str
    """``^``, ``$``, ``b`` (a word boundary) or ``B`` (none)."""


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead."""

    item: "Regex"
    negative: bool


Regex = Chars | Seq | Alt | Repeat | Anchor | Look

EMPTY = Seq(())
ANY_TEXT = Repeat(Chars(EVERYTHING), 0, None)

_CLASSES: dict[str, CharSet] = {
    "d": DIGITS,
    "D": complement(DIGITS),
    "w": WORD,
    "W": complement(WORD),
    "s": SPACE,
    "S": complement(SPACE),
}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B, "f": 0x0C}
_HEX = frozenset("0123456789abcdefABCDEF")


def parse(pattern: str, limits: SchemaLimits) -> Regex:
    """The tree of ``pattern``. Raises UnsupportedPatternError."""
    if len(pattern) > limits.max_pattern_length:
        raise UnsupportedPatternError(
            f"has {len(pattern)} characters; the limit is {limits.max_pattern_length}", "shorten it"
        )
    if "\0" in pattern:
        raise UnsupportedPatternError("holds a NUL character", "write it as \\x00")
    parser = _Parser(pattern, limits)
    tree = parser.alternation(0)
    if parser.position < len(pattern):
        raise _malformed("an unmatched )", parser.position)
    if repeat_product(tree) > limits.max_repeat:
        raise UnsupportedPatternError(
            f"repeats more than {limits.max_repeat} times, nested bounds multiplied", "lower the bounds"
        )
    return tree


def repeat_product(tree: Regex) -> int:
    """The largest product of nested repetition bounds; an unbounded repetition counts with its lower bound."""
    match tree:
        case Seq(items) | Alt(items):
            return max((repeat_product(item) for item in items), default=1)
        case Repeat(item, low, high):
            return max(low if high is None else high, 1) * repeat_product(item)
        case Look(item):
            return repeat_product(item)
        case _:
            return 1


class _Parser:
    """Recursive descent; groups nest at most ``limits.max_nesting`` deep."""

    def __init__(self, pattern: str, limits: SchemaLimits) -> None:
        self._pattern = pattern
        self._limits = limits
        self.position = 0

    def alternation(self, depth: int) -> Regex:
        if depth > self._limits.max_nesting:
            raise UnsupportedPatternError(
                f"nests groups deeper than {self._limits.max_nesting}", "remove levels of groups"
            )
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self.position += 1
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self, depth: int) -> Regex:
        items: list[Regex] = []
        while (character := self._peek()) and character not in "|)":
            item = self._atom(depth)
            items.append(self._quantified(item))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _atom(self, depth: int) -> Regex:
        start = self.position
        character = self._take()
        match character:
            case "^" | "$":
                return Anchor(character)
            case ".":
                return Chars(complement(LINE_ENDS))
            case "(":
                return self._group(depth, start)
            case "[":
                return self._class(start)
            case "\\" if (kind := self._peek()) in ("b", "B"):
                self.position += 1
                return Anchor(kind)
            case "\\":
                return Chars(self._escape(start, in_class=False))
            case "*" | "+" | "?":
                raise _malformed(f"nothing to repeat before {character}", start)
            case _:
                return Chars(_one(ord(character), start))

    def _group(self, depth: int, start: int) -> Regex:
        look: bool | None = None
        if self._peek() == "?":
            rest = self._pattern[self.position : self.position + 3]
            if rest[:2] == "?:":
                self.position += 2
            elif rest[:2] in ("?=", "?!"):
                look = rest[1] == "!"
                self.position += 2
            elif rest in ("?<=", "?<!"):
                raise UnsupportedPatternError("has a lookbehind", "express it without lookbehind")
            elif rest[:2] == "?<" and (end := self._pattern.find(">", self.position)) > 0:
                self.position = end + 1
            else:
                raise _malformed("an unknown kind of group (?", start)
        inner = self.alternation(depth + 1)
        if self._peek() != ")":
            raise _malformed("an unmatched (", start)
        self.position += 1
        return inner if look is None else Look(inner, look)

    def _quantified(self, item: Regex) -> Regex:
        character = self._peek()
        bounds: tuple[int, int | None] | None = None
        if character and character in "*+?":
            self.position += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        elif character == "{":
            bounds = self._braces()
        if bounds is None:
            return item
        if isinstance(item, Anchor | Look):
            raise _malformed("a repeated anchor or lookahead", self.position)
        if self._peek() == "?":  # Lazy: the same language.
            self.position += 1
        if self._peek() in ("*", "+", "?") and self._peek():
            raise _malformed("a repetition of a repetition", self.position)
        low, high = bounds
        if high is not None and high < low:
            raise _malformed("repetition bounds out of order", self.position)
        return Repeat(item, low, high)

    def _braces(self) -> tuple[int, int | None] | None:
        """Bounds such as {2,5}; None: the brace stands for itself."""
        end = self._pattern.find("}", self.position)
        low, comma, high = self._pattern[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or (high and not _is_number(high)):
            return None
        for number in (low, high):
            if len(number) > 9 or int(number or 0) > self._limits.max_repeat:
                raise UnsupportedPatternError(
                    f"repeats {number[:20]} times; the limit is {self._limits.max_repeat}", "lower the bound"
                )
        self.position = end + 1
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high else None

    def _class(self, start: int) -> Regex:
        negative = self._peek() == "^"
        if negative:
            self.position += 1
        chars: list[CharSet] = []
        while self._peek() != "]":
            if not self._peek():
                raise _malformed("an unmatched [", start)
            low = self._class_atom()
            if self._peek() == "-" and self._pattern[self.position + 1 : self.position + 2] not in ("]", ""):
                self.position += 1
                chars.append(self._range(low, self._class_atom(), start))
            else:
                chars.append(low)
        self.position += 1
        members = union(*chars)
        return Chars(complement(members) if negative else members)

    def _range(self, low: CharSet, high: CharSet, start: int) -> CharSet:
        if _size(low) != 1 or _size(high) != 1:
            # [\w-.]: the dash stands for itself, as browsers read it.
            return union(low, high, ((0x2D, 0x2D),))
        if low[0][0] > high[0][0]:
            raise _malformed("a character range out of order", start)
        return charset([(low[0][0], high[0][0])])

    def _class_atom(self) -> CharSet:
        start = self.position
        character = self._take()
        return self._escape(start, in_class=True) if character == "\\" else _one(ord(character), start)

    def _escape(self, start: int, *, in_class: bool) -> CharSet:
        character = self._take() if self._peek() else ""
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            return _one(_CONTROLS[character], start)
        match character:
            case "":
                raise _malformed("a lone backslash at the end", start)
            case "b" if in_class:
                return _one(0x08, start)
            case "0" if not self._peek().isdecimal():
                return _one(0, start)
            case "p" | "P":
                return self._property(character == "P", start)
            case "x" | "u" | "c":
                return _one(self._coded(character, start), start)
            case _ if character.isdecimal() or character == "k":
                raise UnsupportedPatternError("has a back-reference", "express it without back-references")
            case _ if character.isalpha() and character.isascii():
                raise _malformed(f"an unknown escape \\{character}", start)
            case _:
                return _one(ord(character), start)

    def _coded(self, kind: str, start: int) -> int:
        if kind == "c":
            letter = self._take() if self._peek() else ""
            if not (letter.isascii() and letter.isalpha()):
                raise _malformed("a malformed \\c", start)
            return ord(letter) % 32
        if kind == "u" and self._peek() == "{":
            end = self._pattern.find("}", self.position)
            digits = self._pattern[self.position + 1 : max(end, 0)]
            self.position = end + 1
        else:
            length = 2 if kind == "x" else 4
            digits = self._pattern[self.position : self.position + length]
            self.position += length
            if len(digits) < length:
                digits = ""
        if not digits or len(digits) > 8 or not _HEX.issuperset(digits) or int(digits, 16) > 0x10FFFF:
            raise _malformed(f"a malformed \\{kind}", start)
        value = int(digits, 16)
        low = self._pattern[self.position : self.position + 6]
        if 0xD800 <= value < 0xDC00 and low[:2] == "\\u" and _HEX.issuperset(low[2:]) and len(low) == 6:
            trail = int(low[2:], 16)
            if 0xDC00 <= trail < 0xE000:
                self.position += 6
                return 0x10000 + ((value - 0xD800) << 10) + (trail - 0xDC00)
        return value

    def _property(self, negative: bool, start: int) -> CharSet:
        end = self._pattern.find("}", self.position)
        if self._peek() != "{" or end < 0:
            raise _malformed("a malformed \\p", start)
        name = self._pattern[self.position + 1 : end]
        self.position = end + 1
        for prefix in ("General_Category=", "gc="):
            name = name.removeprefix(prefix)
        chars = category(name)
        if chars is None:
            raise UnsupportedPatternError(
                f"uses \\p{{{name[:40]}}}, which is no general category", "write the characters out as a class"
            )
        return complement(chars) if negative else chars

    def _peek(self) -> str:
        return self._pattern[self.position : self.position + 1]

    def _take(self) -> str:
        self.position += 1
        return self._pattern[self.position - 1]


def _one(code_point: int, start: int) -> CharSet:
    if 0xD800 <= code_point <= 0xDFFF:
        raise UnsupportedPatternError(
            f"has a lone surrogate at character {start}", "write the character itself or \\u{...}"
        )
    return ((code_point, code_point),)


def _size(chars: CharSet) -> int:
    return sum(high - low + 1 for low, high in chars)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _malformed(what: str, position: int) -> UnsupportedPatternError:
    return UnsupportedPatternError(f"has {what} at character {position}", "correct the regular expression")
