"""Rules of a grammar that no finite text matches, such as ``root ::= root "a"``.

Engines take long to see it, or never do: an output would go on until its last token. A rule is found endless
only where its text says so; what is not understood here (terminals, templates, embedded grammars) is taken to
end.
"""

import json
import re
from dataclasses import dataclass, field

from ramet.runtime.protocol import InvalidRequestError

_GBNF = re.compile(
    r"""(?P<skip>\#[^\n]*|\s+)
    |(?P<item>"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\])
    |(?P<rule>[\w-]+(?=\s*::=))
    |(?P<name>[\w-]+)
    |(?P<count>[*?+]|\{[^{}]*\})
    |(?P<mark>::=|[|()])
    |(?P<item2>.)""",
    re.VERBOSE | re.DOTALL,
)
_LARK = re.compile(
    r"""(?P<skip>(?://|\#)[^\n]*|->\s*\w+|\s+)
    |(?P<item>"(?:[^"\\\n]|\\.)*"i?|/(?![/*])(?:[^/\\\n]|\\.)+/\w*|\[[^\]\n]*\]|<[^<>\s]*>)
    |(?P<document>%(?:json|llguidance|lark|regex)\s*(?=\{))
    |(?P<line>%[^\n]*)
    |(?P<rule>[?!]?[a-zA-Z_]\w*(?=(?:\[[^\]\n]*\]|\.\d+)*\s*:))
    |(?P<item2>\w+\s*\{(?!\s*[\d,]))
    |(?P<name>[a-zA-Z_]\w*)
    |(?P<count>[*?+]|\{[^{}]*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<mark>[|():])
    |(?P<item3>.)""",
    re.VERBOSE | re.DOTALL,
)
_LOWEST = re.compile(r"[{~]\s*(\d*)")


@dataclass(slots=True)
class _Alternative:
    """``needed``: rules that must end for it to end; ``optional``: rules in it that may be left out."""

    needed: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)


Rules = dict[str, list[_Alternative]]
"""By name. A group is a rule of its own, its name that of its rule, a space and a number."""


def check_ends(grammar: str, syntax: str) -> None:
    """Raises InvalidRequestError where a rule that the start leads to matches no finite text.

    ``syntax``: gbnf or lark. Takes time in proportion to the grammar's length.
    """
    rules = _read(grammar, _GBNF if syntax == "gbnf" else _LARK)
    ending = _ending(rules)
    stack = ["root" if syntax == "gbnf" else "start"]
    reached = set(stack)
    while stack:
        rule = stack.pop()
        if rule not in rules:
            continue
        if rule not in ending and " " not in rule:
            # A group is endless for a rule in it, or around it.
            raise InvalidRequestError(
                f"the rule {rule[:80]} of the grammar matches no finite text: all of its "
                "alternatives lead back to themselves; give it one that does not",
                field="grammar",
            )
        for alternative in rules[rule]:
            new = (alternative.needed | alternative.optional) - reached
            reached |= new
            stack += sorted(new)


def _read(grammar: str, pieces: "re.Pattern[str]") -> Rules:
    """The rules; none of them where a definition is of a form that is not known here."""
    rules: Rules = {}
    groups: list[str] = []
    last: str | None = None
    in_head = False
    at = 0
    while at < len(grammar):
        piece = pieces.match(grammar, at)
        assert piece is not None
        text, kind, at = piece.group(), piece.lastgroup, piece.end()
        if kind == "skip":
            continue
        if kind == "document":
            at = _behind_document(grammar, at)
        if kind == "rule":
            groups = [text.lstrip("?!")]
            rules.setdefault(groups[0], []).append(_Alternative())
            in_head, last = True, None
            continue
        if text in (":", "::="):
            if not in_head:
                return {}
            in_head = False
            continue
        if not in_head and groups and kind != "line":
            last = _take(rules, groups, text, kind, last)
    return rules


def _take(rules: Rules, groups: list[str], text: str, kind: str | None, last: str | None) -> str | None:
    """Enter one piece of a rule's right side. ``last``: the rule or group just before it, of which a count
    would be; answers that for the piece behind."""
    here = rules[groups[-1]]
    if kind == "name":
        is_new = text not in here[-1].needed
        here[-1].needed.add(text)
        return text if is_new else None
    if kind == "count" and last is not None and _may_be_none(text):
        here[-1].needed.discard(last)
        here[-1].optional.add(last)
    elif text == "|":
        here.append(_Alternative())
    elif text == "(":
        group = f"{groups[0]} {len(rules)}"
        here[-1].needed.add(group)
        groups.append(group)
        rules[group] = [_Alternative()]
    elif text == ")" and len(groups) > 1:
        return groups.pop()
    return None


def _behind_document(grammar: str, at: int) -> int:
    """Where the JSON document that begins at ``at`` ends; ``at`` if it is none, or no JSON."""
    try:
        return json.JSONDecoder().raw_decode(grammar, at)[1]
    except (ValueError, RecursionError):
        return at


def _may_be_none(count: str) -> bool:
    if count in "*?+":
        return count != "+"
    lowest = _LOWEST.match(count)
    return lowest is None or not lowest.group(1).strip("0")


def _ending(rules: Rules) -> set[str]:
    """Those that match a finite text; by the number of names that each alternative still needs."""
    waiting: dict[str, list[tuple[str, list[int]]]] = {}
    done: list[str] = []
    for rule, alternatives in rules.items():
        for alternative in alternatives:
            needed = alternative.needed & rules.keys()
            left = [len(needed)]
            for name in needed:
                waiting.setdefault(name, []).append((rule, left))
            if not needed:
                done.append(rule)
    ending: set[str] = set()
    while done:
        rule = done.pop()
        if rule in ending:
            continue
        ending.add(rule)
        for other, left in waiting.get(rule, ()):
            left[0] -= 1
            if not left[0]:
                done.append(other)
    return ending
