"""Regular expressions: what Python's and Rust's syntax share, written so that each engine reads the same.

A pattern that Python (``re.fullmatch``) and Rust would read differently is refused by name, never guessed at:
set operations inside of brackets, possessive quantifiers, ``(?x)``. Anchors at the ends say nothing in a full
match and are dropped. What no engine has (look-around, backreferences, word boundaries) is refused too.
"""

import re
from dataclasses import dataclass

from ramet.runtime.protocol import UnsupportedConstraintError

MAX_NESTING = 64
"""Groups inside of groups: more than that, and engines that recurse run out of stack."""
MAX_REPEATS = 100_000
"""Most copies of an element that counted repeats ask for, multiplied along the nesting."""

_META = frozenset("\\.+*?()|[]{}^$-/")
_SET_META = _META | {"&", "~"}
_COUNTED = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}
_SET_OPERATORS = ("&&", "--", "~~")


@dataclass(frozen=True, slots=True)
class FullPattern:
    """A pattern that matches whole strings. ``text`` has no anchors and means the same to Python and Rust."""

    text: str
    repeats: int
    """Most copies of an element that counted repeats ask for."""
    is_nested: bool
    """An unbounded or optional repeat stands inside of a repeat, as in ``(\\w+\\s?){1,50}``."""
    classes: frozenset[str]
    """What it uses of ``.`` and of the classes of characters, such as ``\\d``."""
    has_flags: bool


def full_pattern(pattern: str) -> FullPattern:
    """Read a pattern that the whole output must match.

    Raises:
        UnsupportedConstraintError: it is not valid, or not the same in Python and in Rust, or needs what no
        engine has.
    """
    return _Reader(pattern).read()


def literal_pattern(text: str) -> str:
    """A pattern that matches exactly ``text``."""
    return "".join(_literal(character) for character in text)


def _literal(character: str, meta: frozenset[str] = _META) -> str:
    if character in meta:
        return f"\\{character}"
    return f"\\x{ord(character):02x}" if ord(character) < 32 or ord(character) == 127 else character


def _code_of(member: str) -> int | None:
    """The code point of a set's element as it is written for the engines; None: a class of several."""
    if len(member) == 1:
        return ord(member)
    if re.fullmatch(r"\\x[0-9a-f]{2}", member):
        return int(member[2:], 16)
    if len(member) == 2 and member[1] in _CONTROLS:
        return _CONTROLS[member[1]]
    return ord(member[1]) if len(member) == 2 and not member[1].isalnum() else None


def refuse(pattern: str, problem: str) -> UnsupportedConstraintError:
    """The error for a pattern that cannot be enforced."""
    return UnsupportedConstraintError(
        f"the regular expression {pattern[:80]!r} cannot be enforced: {problem}", field="grammar"
    )


@dataclass(slots=True)
class _Group:
    """What stands in a group: the most copies of one element, and whether it has a repeat."""

    repeats: int = 1
    varies: bool = False


class _Reader:
    """Reads a pattern from left to right, once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []
        self._groups = [_Group()]
        self._element: _Group | None = None
        """What a quantifier that comes now would repeat."""
        self._is_nested = False
        self._classes: set[str] = set()
        self._has_flags = False

    def read(self) -> FullPattern:
        pattern = self._pattern
        if "\0" in pattern:
            raise refuse(pattern, "it has a NUL character; write \\x00")
        if any(0xD800 <= ord(character) < 0xE000 for character in pattern):
            raise refuse(pattern, "it has a lone surrogate, which is no character; remove it")
        while self._at < len(pattern):
            self._step(pattern[self._at])
        if len(self._groups) > 1:
            raise refuse(pattern, "a group is not closed")
        return FullPattern(
            "".join(self._out),
            self._groups[0].repeats,
            self._is_nested,
            frozenset(self._classes),
            self._has_flags,
        )

    def _step(self, character: str) -> None:
        match character:
            case "\\":
                self._escape()
            case "[":
                self._set()
            case "(":
                self._open()
            case ")":
                self._close()
            case "*" | "+" | "?" | "{":
                self._quantifier()
            case "^" | "$":
                self._anchor(character)
            case "|":
                self._emit("|", None)
            case ".":
                self._classes.add(".")
                self._emit(".", _Group())
            case _:
                self._emit(character, _Group())

    def _emit(self, text: str, element: _Group | None, length: int = 1) -> None:
        self._out.append(text)
        self._close_element()
        self._element = element
        self._at += length

    def _close_element(self) -> None:
        if self._element is not None:
            group = self._groups[-1]
            group.repeats = max(group.repeats, self._element.repeats)
            group.varies = group.varies or self._element.varies
            self._element = None

    def _anchor(self, text: str) -> None:
        """Dropped where it stands at an end of the whole pattern or of one of its alternatives."""
        pattern, start, end = self._pattern, self._at, self._at + len(text)
        at_end = end == len(pattern) or pattern[end] == "|"
        at_start = start == 0 or pattern[start - 1] == "|"
        if len(self._groups) > 1 or not (at_start if text in ("^", "\\A") else at_end):
            raise refuse(
                pattern,
                f"{text} stands inside of it; the whole output is matched, so an anchor is needed at no place: "
                "remove it",
            )
        self._close_element()
        self._at = end

    def _escape(self) -> None:
        pattern, at = self._pattern, self._at
        escaped = pattern[at + 1 : at + 2]
        if not escaped:
            raise refuse(pattern, "it ends with a single backslash")
        if escaped in "AZz":
            self._anchor("\\" + escaped)
            return
        self._emit(*self._escaped(escaped, in_set=False))

    def _escaped(self, escaped: str, *, in_set: bool) -> tuple[str, _Group, int]:
        """The text of an escape sequence, what it stands for, and its length."""
        pattern = self._pattern
        if escaped in "bB" and not in_set:
            raise refuse(pattern, f"\\{escaped} (a word boundary) is in no engine; spell the characters out")
        if escaped == "b":
            return "\\x08", _Group(), 2
        if escaped in "123456789k" and not in_set:
            raise refuse(pattern, "backreferences are in no engine; spell the text out")
        if escaped in "dDwWsSpP":
            self._classes.add("\\" + escaped)
            if escaped in "pP":
                found = re.compile(r"\\[pP](\{[^{}]*\}|[A-Z])").match(pattern, self._at)
                if found is None:
                    raise refuse(pattern, f"\\{escaped} needs a class of characters, as in \\p{{L}}")
                return found.group(), _Group(), len(found.group())
            return "\\" + escaped, _Group(), 2
        if escaped in "xuU":
            return self._code_point(escaped, in_set)
        if escaped == "0":
            found = re.compile(r"\\0[0-7]{0,2}").match(pattern, self._at)
            assert found is not None
            return _literal(chr(int(found.group()[1:], 8))), _Group(), len(found.group())
        if escaped in "nrtfva":
            return "\\" + escaped, _Group(), 2
        if escaped.isascii() and escaped.isalnum():
            raise refuse(pattern, f"\\{escaped} is no known escape sequence")
        return _literal(escaped, _SET_META if in_set else _META), _Group(), 2

    def _code_point(self, kind: str, in_set: bool) -> tuple[str, _Group, int]:
        digits = {"x": 2, "u": 4, "U": 8}[kind]
        found = re.compile(rf"\\{kind}(?:([0-9a-fA-F]{{{digits}}})|\{{([0-9a-fA-F]{{1,8}})\}})").match(
            self._pattern, self._at
        )
        if found is None:
            raise refuse(self._pattern, f"\\{kind} needs {digits} hexadecimal digits")
        code = int(found.group(1) or found.group(2), 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise refuse(self._pattern, f"{found.group()} is no character")
        text = _literal(chr(code), _SET_META if in_set else _META)
        return text, _Group(), len(found.group())

    def _set(self) -> None:
        """A set in brackets. An unescaped ``[`` in it is a character for Python and a set for Rust."""
        pattern, start = self._pattern, self._at
        at = start + 1 + (pattern[start + 1 : start + 2] == "^")
        out = [pattern[start:at]]
        first = at
        low: str | None = None
        """The element before a ``-``, which begins a range if another element follows."""
        while pattern[at : at + 1] != "]" or at == first:
            self._check_in_set(at)
            self._at = at
            text, length = self._member(at)
            is_range = (
                text == "-" and at > first and low is not None and pattern[at + 1 : at + 2] not in ("]", "")
            )
            if is_range:
                high, high_length = self._member(at + 1)
                self._check_range(low or "", high, start)
                text, length = text + high, length + high_length
            low = None if is_range else text
            out.append(text)
            at += length
        self._at = start
        self._emit("".join(out) + "]", _Group(), at + 1 - start)

    def _member(self, at: int) -> tuple[str, int]:
        """One element of a set as it is written for the engines, and its length in the pattern."""
        character, escaped = self._pattern[at], self._pattern[at + 1 : at + 2]
        if character != "\\":
            return ("\\" + character if character in "[]&~" else character), 1
        if not escaped:
            raise refuse(self._pattern, "it ends with a single backslash")
        self._at = at
        text, _, length = self._escaped(escaped, in_set=True)
        return text, length

    def _check_in_set(self, at: int) -> None:
        pattern = self._pattern
        if at >= len(pattern):
            raise refuse(pattern, "a set is not closed; write \\[ for the character")
        if pattern[at : at + 2] in _SET_OPERATORS:
            raise refuse(
                pattern,
                f"{pattern[at : at + 2]} in a set means different things in Python and Rust; escape "
                "it with backslashes for the characters",
            )
        if pattern[at] == "[" and pattern[at + 1 : at + 2] in (":", "=", "."):
            raise refuse(pattern, "a named class in a set is not Python's; write its characters out")

    def _check_range(self, low: str, high: str, start: int) -> None:
        """Raises UnsupportedConstraintError: a range ends before it begins, or has a class at an end."""
        ends = [_code_of(low), _code_of(high)]
        if None in ends:
            problem = "has a class of characters at an end; put the class beside it"
        elif ends != sorted(ends, key=lambda code: code or 0):
            problem = "ends before it begins; give the lower character first"
        else:
            return
        raise refuse(self._pattern, f"the range {low}-{high} in the set at {start} {problem}")

    def _open(self) -> None:
        pattern = self._pattern
        if len(self._groups) > MAX_NESTING:
            raise refuse(pattern, f"its groups are nested more than {MAX_NESTING} deep")
        head = re.compile(r"\((?:\?(?:P?<[A-Za-z_]\w*>|[ims]*(?:-[ims]+)?:))?").match(pattern, self._at)
        assert head is not None
        text = head.group()
        if text == "(" and pattern[self._at + 1 : self._at + 2] == "?":
            self._inline(pattern)
            return
        self._has_flags = self._has_flags or (text.endswith(":") and text != "(?:")
        named = text.startswith(("(?P<", "(?<"))
        self._emit("(?:" if text == "(" or named else text, None, len(text))
        self._groups.append(_Group())

    def _inline(self, pattern: str) -> None:
        flags = re.compile(r"\(\?([ims]+)\)").match(pattern, self._at)
        if flags is not None and self._at == 0:
            self._has_flags = True
            self._emit(flags.group(), None, len(flags.group()))
            return
        for head, name in (
            (r"\(\?<?[=!]", "look-around"),
            (r"\(\?P=", "a backreference"),
            (r"\(\?\(", "a conditional group"),
            (r"\(\?>", "an atomic group"),
            (r"\(\?#", "a comment"),
            (r"\(\?[a-zA-Z-]+[:)]", "a flag other than i, m and s, or one that is not at the start"),
        ):
            if re.compile(head).match(pattern, self._at):
                raise refuse(pattern, f"{name} is in no engine; rewrite it without")
        raise refuse(pattern, f"(? at {self._at} begins no known group")

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise refuse(self._pattern, f"the ) at {self._at} closes no group; write \\) for the character")
        self._close_element()
        group = self._groups.pop()
        self._out.append(")")
        self._element = group
        self._at += 1

    def _quantifier(self) -> None:
        pattern = self._pattern
        element = self._element
        low, high, length = self._counts()
        if element is None:
            raise refuse(pattern, f"the {pattern[self._at]} at {self._at} repeats nothing; escape it")
        copies = max(low, high or 0, 1)
        if copies > MAX_REPEATS or element.repeats * copies > MAX_REPEATS:
            raise refuse(pattern, f"its repeats ask for more than {MAX_REPEATS:,} copies; lower them")
        self._is_nested = self._is_nested or (element.varies and high != 1)
        tail = pattern[self._at + length : self._at + length + 1]
        if tail == "+":
            raise refuse(pattern, "possessive repeats are in no engine; leave the second + out")
        if tail and tail in "*{" and self._is_count(self._at + length):
            raise refuse(pattern, f"there are two repeats at {self._at}; put the first into a group")
        self._out.append(_count_text(low, high))
        self._element = None
        group = self._groups[-1]
        group.repeats = max(group.repeats, element.repeats * copies)
        group.varies = group.varies or element.varies or low != high
        # A lazy repeat matches the same whole strings.
        self._at += length + (tail == "?")

    def _is_count(self, at: int) -> bool:
        return self._pattern[at] == "*" or _COUNTED.match(self._pattern, at) is not None

    def _counts(self) -> tuple[int, int | None, int]:
        """Lowest and highest count (None: no bound), and the length of the quantifier."""
        character = self._pattern[self._at]
        if character != "{":
            return (1 if character == "+" else 0), (1 if character == "?" else None), 1
        found = _COUNTED.match(self._pattern, self._at)
        if found is None or found.group() in ("{}", "{,}"):
            raise refuse(self._pattern, f"the {{ at {self._at} begins no repeat; write \\{{ for the character")
        low = int(found.group(1)[:9] or 0)
        high = low if found.group(2) is None else (int(found.group(3)[:9]) if found.group(3) else None)
        if high is not None and high < low:
            raise refuse(self._pattern, f"the repeat {found.group()} ends before it begins")
        return low, high, len(found.group())


def _count_text(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{low},}}"
        case _:
            return f"{{{low}}}" if low == high else f"{{{low},{high}}}"
