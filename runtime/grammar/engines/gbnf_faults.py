"""What is wrong with a GBNF grammar that cannot be read, where, and what to do about it.

Asked only about grammars that the engine's reader refuses, whose own message has no position or remedy. So a
fault that is not found here costs the message a detail, and a valid grammar nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TOKENS = re.compile(
    r"""(?P<skip>\#[^\n]*|\s+)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<rule>[\w-]+(?=\s*::=))
    |(?P<define>::=)
    |(?P<name>[\w-]+)
    |(?P<count>[*?+]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<open>\()
    |(?P<close>\))
    |(?P<or>\|)
    |(?P<dot>\.)
    |(?P<item>.)""",
    re.VERBOSE | re.DOTALL,
)
_WRONG_ESCAPE = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]^-])|(?P<wrong>\\.?)""", re.DOTALL
)
_CHARACTERS: Mapping[str, tuple[str, str]] = {
    '"': ("the text that begins here has no closing quote on its line", 'close it with "'),
    "[": ("the set of characters that begins here is not closed on its line", "close it with ]"),
    "{": ("what begins here is no count", "write {3}, {3,} or {3,5}"),
    "'": ("a text stands in single quotes", "put it in double quotes"),
    "/": ("GBNF has no regular expressions", "write it with sets and counts, or give the grammar as Lark"),
    "=": ("a rule is defined by ::=", "write ::="),
    ":": ("a rule is defined by ::=", "write ::=, or give the grammar as Lark"),
}
_PARTS = frozenset({"text", "set", "name", "dot", "open"})


@dataclass(frozen=True, slots=True)
class Fault:
    """At the character ``offset`` of the grammar."""

    offset: int
    problem: str
    remedy: str


@dataclass(slots=True)
class _Reading:
    """``last``: the kind of the token before; ``has_broken``: a line ended since."""

    last: str = ""
    has_broken: bool = False
    opened: list[int] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    used: list[tuple[str, int]] = field(default_factory=list)


def gbnf_fault(grammar: str) -> Fault | None:
    """The first one; None: none is known. Takes time in proportion to the grammar's length."""
    reading = _Reading()
    for token in _TOKENS.finditer(grammar):
        kind = token.lastgroup or "item"
        if kind == "skip":
            reading.has_broken |= "\n" in token.group()
            continue
        if (fault := next(_faults_of(kind, token.group(), token.start(), reading), None)) is not None:
            return fault
        reading.last, reading.has_broken = kind, False
    if reading.opened:
        return _not_closed(reading)
    if "root" not in reading.defined:
        return Fault(0, "no rule is named root, with which the text begins", "name the first rule root")
    for name, offset in reading.used:
        if name not in reading.defined:
            problem = f"the rule {name[:80]} is used here and defined nowhere"
            return Fault(offset, problem, f"define it: {name[:80]} ::= ...")
    return None


def _faults_of(kind: str, text: str, offset: int, reading: _Reading) -> Iterator[Fault]:
    last, opened = reading.last, reading.opened
    begins = kind in ("or", *_PARTS) and reading.has_broken and not opened and last not in ("or", "define", "")
    yield from _out_of_place(kind, text, offset, is_outside=begins or not reading.defined)
    match kind:
        case "item":
            known = _CHARACTERS.get(text)
            problem, remedy = known or (f"the character {text!r} has no meaning here", "put it in quotes")
            yield Fault(offset, problem, remedy)
        case "text" | "set":
            yield from _wrong_escapes(text, offset)
        case "rule":
            if opened:
                yield _not_closed(reading)
            reading.defined.add(text)
        case "define" if last != "rule":
            yield Fault(offset, "no rule's name stands before ::=", "write name ::= ...")
        case "name":
            reading.used.append((text, offset))
        case "count" if last not in (*_PARTS - {"open"}, "close"):
            problem = "a count stands behind another" if last == "count" else "there is nothing to repeat here"
            yield Fault(offset, problem, "put what is to be repeated in parentheses before it")
        case "open":
            opened.append(offset)
        case "close" if opened:
            opened.pop()
        case "close":
            yield Fault(offset, "there is no ( for this )", "remove it, or open the group")


def _out_of_place(kind: str, text: str, offset: int, *, is_outside: bool) -> Iterator[Fault]:
    """``is_outside``: it stands where a rule must begin."""
    if is_outside and kind == "name":
        yield Fault(offset, f"no ::= stands behind {text[:80]}", f"write {text[:80]} ::= ...")
    elif is_outside and (kind in _PARTS or kind == "or"):
        yield Fault(
            offset,
            "a rule ends with its line, and this line begins no other",
            "begin it with root ::=, end the line before with |, or put the alternatives in parentheses",
        )


def _wrong_escapes(text: str, offset: int) -> Iterator[Fault]:
    for escape in _WRONG_ESCAPE.finditer(text):
        if escape["wrong"] is not None:
            yield Fault(
                offset + escape.start(),
                f"{escape['wrong']} is no escape of GBNF",
                r"use \n, \r, \t, \\, \", \[, \], \x41, \u0041 or \U00000041",
            )


def _not_closed(reading: _Reading) -> Fault:
    return Fault(reading.opened[-1], "the group that begins here is not closed", "close it with )")
