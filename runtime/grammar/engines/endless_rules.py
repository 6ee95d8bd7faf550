"""Rules of a grammar that no finite text matches, such as ``root ::= root "a"``, or only absurdly long ones.

Engines take long to see the one, or never do, and write out the other: of twenty rules of which each is twice
the next the first has a million characters, of forty a million times as many. A rule is found endless or long
only where its text says so: what is not understood here (templates, regular expressions, embedded grammars) is
taken to end, and to be empty.
"""

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet.runtime.protocol import InvalidRequestError

_GBNF = re.compile(
    r"""(?P<skip>\#[^\n]*|\s+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<character>\[(?:[^\]\\]|\\.)*\]|\.)
    |(?P<rule>[\w-]+(?=\s*::=))
    |(?P<name>[\w-]+)
    |(?P<count>[*?+]|\{[^{}]*\})
    |(?P<mark>::=|[|()])
    |(?P<item>.)""",
    re.VERBOSE | re.DOTALL,
)
_LARK = re.compile(
    r"""(?P<skip>(?://|\#)[^\n]*|->\s*\w+|\s+)
    |(?P<character>"(?:[^"\\\n]|\\.)*"\s*\.\.\s*"(?:[^"\\\n]|\\.)*")
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<item>/(?![/*])(?:[^/\\\n]|\\.)+/\w*|\[[^\]\n]*\]|<[^<>\s]*>)
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
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
MAX_SHORTEST = 150_000
"""Characters of the shortest text of a rule, or of one of its alternatives: more than a model writes."""
_HIGHEST = re.compile(r"[{~]\s*(\d*)\s*(?:(?:,|\.\.)\s*(\d*))?")
MAX_VARYING = 10_000
"""Parts that are repeated or may be missing, in a rule that is written out. llguidance writes out what it makes
a lexeme of, in time and memory that grow with their square, before it counts: 16,000 take it four seconds,
130,000 minutes and all memory."""
_SATURATED = 10**15


@dataclass(slots=True)
class _Alternative:
    """``needed``: rules that must end for it to end, and how often each stands in it; ``optional``: rules in it
    that may be left out; ``written``: how often it names each rule, counts aside; ``length``: of what it writes
    itself, characters; ``counted``: rules that a count such as ``{1,50}`` repeats in it; ``varies``: something
    is repeated any number of times, or may be missing; ``most``: how often each rule may stand in it, where
    that is bounded, else once; ``most_own``: the same of what it writes itself."""

    needed: Counter[str] = field(default_factory=Counter)
    optional: set[str] = field(default_factory=set)
    written: Counter[str] = field(default_factory=Counter)
    length: int = 0
    counted: set[str] = field(default_factory=set)
    varies: bool = False
    most: Counter[str] = field(default_factory=Counter)
    most_own: int = 0


Rules = dict[str, list[_Alternative]]
"""By name. A group is a rule of its own, its name that of its rule, a space and a number."""
_Last = str | int | None
"""What stands before a count: a rule's name, or a text's length; None: what has no say here."""


def check_ends(grammar: str, syntax: str) -> None:
    """Raises InvalidRequestError where a rule that the start leads to matches no finite text, or an alternative
    only texts of more than MAX_SHORTEST characters; or a rule without recursion has more than MAX_VARYING parts
    that are repeated or may be missing.

    ``syntax``: gbnf or lark. Takes time in proportion to the grammar's length.
    """
    rules = _read(grammar, _GBNF if syntax == "gbnf" else _LARK)
    shortest = _shortest(rules)
    stack = ["root" if syntax == "gbnf" else "start"]
    reached = set(stack)
    while stack:
        rule = stack.pop()
        if rule not in rules:
            continue
        if rule not in shortest and " " not in rule:
            # A group is endless for a rule in it, or around it.
            raise InvalidRequestError(
                f"the rule {rule[:80]} of the grammar matches no finite text: all of its "
                "alternatives lead back to themselves; give it one that does not",
                field="grammar",
            )
        for alternative in rules[rule]:
            _check_length(rule, alternative, shortest)
            new = (alternative.needed.keys() | alternative.optional) - reached
            reached |= new
            stack += sorted(new)
    _check_varying(rules, reached, syntax)


def nested_repeat(grammar: str) -> str | None:
    """The rule of a GBNF grammar in which a count repeats what is repeated or optional itself, as in
    ``("a"+ "b"?){1,50}``, directly or through rules; None: there is none."""
    rules = _read(grammar, _GBNF)
    inside: dict[str, set[str]] = {}
    for rule, alternatives in rules.items():
        for alternative in alternatives:
            for name in alternative.needed.keys() | alternative.optional:
                inside.setdefault(name, set()).add(rule)
    varying = [rule for rule, alternatives in rules.items() if any(part.varies for part in alternatives)]
    found = set(varying)
    while varying:
        new = inside.get(varying.pop(), set()) - found
        found |= new
        varying += new
    for rule, alternatives in rules.items():
        if any(not found.isdisjoint(alternative.counted) for alternative in alternatives):
            return rule.partition(" ")[0]
    return None


def written_size(grammar: str, syntax: str) -> int:
    """About how many parts the largest rule without recursion has if the rules and repetitions in it are
    written out; a repetition without end counts once. ``syntax``: gbnf or lark."""
    rules = _read(grammar, _GBNF if syntax == "gbnf" else _LARK)
    inner_of = {
        rule: {name for part in parts for name in part.most if name in rules} for rule, parts in rules.items()
    }
    sizes: dict[str, int] = {}
    for rule in _innermost_first(inner_of):
        size = sum(
            part.most_own + sum(sizes.get(name, 1) * n for name, n in part.most.items()) for part in rules[rule]
        )
        sizes[rule] = min(max(1, size), _SATURATED)
    return max(sizes.values(), default=0)


def _check_length(rule: str, alternative: _Alternative, shortest: dict[str, int]) -> None:
    length = alternative.length + sum(shortest.get(name, 0) * n for name, n in alternative.needed.items())
    if length <= MAX_SHORTEST:
        return
    # The innermost rule that is too long tells most.
    long = next((name for name in alternative.needed if shortest.get(name, 0) > MAX_SHORTEST), None)
    if long is not None:
        return
    count = f"at least {length:,}" if length < _SATURATED else "astronomically many"
    raise InvalidRequestError(
        f"the rule {rule.partition(' ')[0][:80]} of the grammar asks for {count} characters in one of its "
        f"alternatives; the limit is {MAX_SHORTEST:,}: lower its repetitions, or those of the rules in it",
        field="grammar",
    )


def _check_varying(rules: Rules, reached: set[str], syntax: str) -> None:
    """Of the rules that are lexemes: in GBNF those without recursion, in Lark those in capitals."""
    inner_of = {
        rule: {name for part in rules[rule] for name in part.written if name in rules}
        for rule in reached & rules.keys()
        if syntax == "gbnf" or rule.partition(" ")[0].isupper()
    }
    num_varying: dict[str, int] = {}
    for rule in _innermost_first(inner_of):
        parts = rules[rule]
        count = sum(
            part.varies + sum(num_varying.get(name, 0) * n for name, n in part.written.items())
            for part in parts
        )
        count += len(parts) > 1 and any(not part.length and not part.needed for part in parts)
        if count > MAX_VARYING:
            raise InvalidRequestError(
                f"the rule {rule.partition(' ')[0][:80]} of the grammar has, written out, {count:,} parts that "
                f"are repeated or may be missing; the limit is {MAX_VARYING:,}: have fewer of them in it or in "
                "the rules in it, or say by * or + what comes any number of times",
                field="grammar",
            )
        num_varying[rule] = count


def _innermost_first(inner_of: dict[str, set[str]]) -> Iterator[str]:
    """The rules, each behind those in it; not those of which one leads back to itself."""
    waiting: dict[str, list[str]] = {}
    for rule, inner in inner_of.items():
        for name in inner:
            waiting.setdefault(name, []).append(rule)
    num_open = {rule: len(inner) for rule, inner in inner_of.items()}
    ready = sorted(rule for rule, count in num_open.items() if not count)
    while ready:
        rule = ready.pop()
        yield rule
        for outer in waiting.get(rule, ()):
            num_open[outer] -= 1
            if not num_open[outer]:
                ready.append(outer)


def _read(grammar: str, pieces: "re.Pattern[str]") -> Rules:
    """The rules; none of them where a definition is of a form that is not known here."""
    rules: Rules = {}
    groups: list[str] = []
    last: _Last = None
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


def _take(rules: Rules, groups: list[str], text: str, kind: str | None, last: _Last) -> _Last:
    """Enter one piece of a rule's right side. ``last``: what is just before it, of which a count would be;
    answers that for the piece behind."""
    here = rules[groups[-1]]
    if kind == "name":
        here[-1].needed[text] += 1
        here[-1].written[text] += 1
        here[-1].most[text] += 1
        return text
    if kind in ("text", "character"):
        length = 1 if kind == "character" else len(_ESCAPE.sub("x", text[1 : text.rindex('"')]))
        here[-1].length += length
        here[-1].most_own += 1
        return length
    if kind == "count" and last is not None:
        here[-1].varies |= text in "*?+" or "," in text
        if text[0] == "{" and isinstance(last, str):
            here[-1].counted.add(last)
        _repeat(here[-1], last, _lowest(text))
        if isinstance(last, str):
            here[-1].most[last] += _highest(text) - 1
        else:
            here[-1].most_own += _highest(text) - 1
    elif text == "|":
        here.append(_Alternative())
    elif text == "(":
        group = f"{groups[0]} {len(rules)}"
        here[-1].needed[group] += 1
        here[-1].written[group] += 1
        here[-1].most[group] += 1
        groups.append(group)
        rules[group] = [_Alternative()]
    elif text == ")" and len(groups) > 1:
        return groups.pop()
    return None


def _repeat(alternative: _Alternative, last: str | int, lowest: int) -> None:
    """What stands last in ``alternative`` is there ``lowest`` times at least."""
    if isinstance(last, int):
        alternative.length = min(alternative.length + last * (lowest - 1), _SATURATED)
        return
    alternative.needed[last] += lowest - 1
    if not lowest:
        alternative.optional.add(last)
        if not alternative.needed[last]:
            del alternative.needed[last]


def _behind_document(grammar: str, at: int) -> int:
    """Where the JSON document that begins at ``at`` ends; ``at`` if it is none, or no JSON."""
    try:
        return json.JSONDecoder().raw_decode(grammar, at)[1]
    except (ValueError, RecursionError):
        return at


def _lowest(count: str) -> int:
    if count in "*?+":
        return int(count == "+")
    lowest = _LOWEST.match(count)
    digits = "" if lowest is None else lowest.group(1).lstrip("0")
    return int(digits[:10]) if digits else 0


def _highest(count: str) -> int:
    """What an engine writes out of it: a loop once, and what comes before it."""
    bounds = None if count in "*?+" else _HIGHEST.match(count)
    return 1 if bounds is None else max([1, *(int(digits[:10]) for digits in bounds.groups("") if digits)])


def _shortest(rules: Rules) -> dict[str, int]:
    """The length of the shortest text of each rule that matches a finite one: by Knuth's generalisation of
    Dijkstra's algorithm (1977), the shortest first."""
    waiting: dict[str, list[tuple[str, int, list[int]]]] = {}
    found: list[tuple[int, str]] = []
    for rule, alternatives in rules.items():
        for alternative in alternatives:
            needed = alternative.needed.keys() & rules.keys()
            # How many rules it waits for, and its length without them.
            state = [len(needed), alternative.length]
            for name in needed:
                waiting.setdefault(name, []).append((rule, alternative.needed[name], state))
            if not needed:
                found.append((alternative.length, rule))
    heapq.heapify(found)
    shortest: dict[str, int] = {}
    while found:
        length, rule = heapq.heappop(found)
        if rule in shortest:
            continue
        shortest[rule] = length
        for other, count, state in waiting.get(rule, ()):
            state[0] -= 1
            state[1] = min(state[1] + count * length, _SATURATED)
            if not state[0]:
                heapq.heappush(found, (state[1], other))
    return shortest
