"""Structural tags as llguidance's Lark.

llguidance lexes greedily: a text that may be anything swallows what comes behind it. So a text that ends at a
string becomes one lazy lexeme together with that string, which ends at the first place where the string stands.
Where a text is followed by something else the document is refused here, and another engine may take it.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from ramet.runtime.grammar.engines.full_pattern import full_pattern, literal_pattern
from ramet.runtime.grammar.engines.lark_text import HEADER, lark_json, lark_of_ebnf, lark_regex
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import (
    AnyText,
    Const,
    Either,
    Format,
    Grammar,
    Json,
    Pattern,
    Repeat,
    SeparatedTags,
    Sequence,
    StructuralDocument,
    Tag,
    Token,
    TriggeredTags,
    told_of,
)
from ramet.runtime.protocol import UnsupportedConstraintError


def lark_of_structural_tag(
    document: StructuralDocument, spellings: Spellings, policy: Mapping[str, object]
) -> str:
    """A grammar for llguidance, with ``policy`` in every JSON region.

    Raises:
        UnsupportedConstraintError: a region, or the way in which they follow each other, cannot be enforced.
    """
    return _Writer(spellings, policy).write(document)


@dataclass(frozen=True, slots=True)
class _Strings:
    """One of a few strings."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """Of the output."""


@dataclass(frozen=True, slots=True)
class _Other:
    """Something that a text cannot be told from."""


_Part = Format | _Strings
_Next = _Part | _End | _Other


class _Writer:
    """Writes the rules of one document."""

    def __init__(self, spellings: Spellings, policy: Mapping[str, object]) -> None:
        self._spellings = spellings
        self._policy = policy
        self._rules: list[str] = []
        self._grammars: list[dict[str, str]] = []

    def write(self, document: StructuralDocument) -> str:
        start = self._parts([document.root], _End())
        lark = HEADER + "\n".join([f"start: {start}", *self._rules, ""])
        if not self._grammars:
            return lark
        return json.dumps({"grammars": [{"name": "structure", "lark_grammar": lark}, *self._grammars]})

    def _rule(self, prefix: str, body: str, *, lazy: bool = False) -> str:
        name = f"{prefix}_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def _parts(self, parts: Items[_Part], behind: _Next) -> str:
        """What follows each other, and what comes behind it."""
        flat = [part for given in parts for part in _flattened(given)]
        written: list[str] = []
        at = 0
        while at < len(flat):
            part = flat[at]
            at += 1
            after: _Next = flat[at] if at < len(flat) else behind
            if not isinstance(part, AnyText | Pattern):
                written.append(self._part(part, after))
            elif isinstance(after, Const | _Strings):
                written.append(self._rule("text", f"{self._text(part)} {_one_of(after)}", lazy=True))
                # What comes behind the whole belongs to those who asked: there it is not written a second time.
                if at < len(flat):
                    at += 1
                else:
                    raise _unclear(part)
            elif isinstance(after, Token | _End):
                written.append(self._rule("TEXT", self._text(part)))
            else:
                raise _unclear(part)
        return " ".join(written) or '""'

    def _text(self, part: AnyText | Pattern) -> str:
        """A terminal's expression."""
        match part:
            case Pattern(regex):
                with told_of(part.place):
                    return lark_regex(full_pattern(regex.pattern).text)
            case AnyText(()):
                return "/(?s:.*)/"
            case AnyText(excludes):
                return f"(/(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(map(literal_pattern, excludes))})(?s:.*)/)"

    def _part(self, part: _Part, after: _Next) -> str:
        match part:
            case Const(value):
                return json.dumps(value, ensure_ascii=False)
            case _Strings():
                return _one_of(part)
            case Token(token):
                return f"<[{self._spellings.control_token(token)}]>"
            case Json(planned):
                with told_of(part.place):
                    return lark_json(planned, self._policy)
            case Grammar(ebnf):
                name = f"grammar_{len(self._grammars)}"
                with told_of(part.place):
                    lark = lark_of_ebnf(ebnf, self._spellings, self._policy)
                self._grammars.append({"name": name, "lark_grammar": lark})
                return f"@{name}"
            case Either(elements):
                return self._rule("either", " | ".join(self._parts([e], after) for e in elements))
            case Repeat(content, low, high):
                behind = after if high == 1 else _Other()
                return f"{self._rule('item', self._parts([content], behind))}{_counts(low, high)}"
            case TriggeredTags():
                return self._triggered(part, after)
            case SeparatedTags():
                return self._separated(part)
        raise AssertionError(part)

    def _triggered(self, part: TriggeredTags, after: _Next) -> str:
        if not isinstance(after, _End | Token):
            raise UnsupportedConstraintError(
                "the structural tag cannot be enforced: text behind triggered tags cannot be told from the "
                "text between them; put it into the tags, or end the output there",
                field="grammar",
            )
        text = self._text(AnyText(part.excludes))
        tags = []
        for trigger in part.triggers:
            begin = self._rule("trigger", f"{text} {json.dumps(trigger, ensure_ascii=False)}", lazy=True)
            bodies = []
            for tag in part.tags:
                if isinstance(tag.begin, Const) and tag.begin.value.startswith(trigger):
                    rest = Tag(Const(tag.begin.value.removeprefix(trigger)), tag.content, tag.ends)
                    bodies.append(self._parts([rest], _Other()))
            tags.append(f"{begin} {self._rule('body', ' | '.join(bodies))}")
        any_tag = self._rule("tag", " | ".join(tags))
        free = self._rule("TEXT", text)
        match part.at_least_one, part.stop_after_first:
            case True, True:
                return any_tag
            case False, True:
                return f"({any_tag} | {free})"
            case True, False:
                return f"{any_tag}+ {free}"
            case _:
                return f"{any_tag}* {free}"

    def _separated(self, part: SeparatedTags) -> str:
        tag = self._rule("tag", " | ".join(self._parts([tag], _Other()) for tag in part.tags))
        more = "" if part.stop_after_first else f" ({json.dumps(part.separator, ensure_ascii=False)} {tag})*"
        return f"({tag}{more})" if part.at_least_one else f"({tag}{more})?"


def _flattened(part: _Part) -> list[_Part]:
    """Parts that follow each other, without those that are empty."""
    match part:
        case Sequence(elements):
            return [inner for element in elements for inner in _flattened(element)]
        case Tag(begin, content, ends):
            strings = tuple(end.value for end in ends if isinstance(end, Const))
            last: _Part = Either(ends)
            if len(strings) == len(ends):
                last = _Strings(strings) if len(strings) > 1 else Const(strings[0])
            elif len(ends) == 1:
                last = ends[0]
            return [*_flattened(begin), *_flattened(content), *_flattened(last)]
        case Const(""):
            return []
        case _Strings(values) if "" in values:
            raise UnsupportedConstraintError(
                "the structural tag cannot be enforced: a tag ends with nothing or with a string; give one",
                field="grammar",
            )
        case _:
            return [part]


def _one_of(strings: Const | _Strings) -> str:
    values = (strings.value,) if isinstance(strings, Const) else strings.values
    if len(values) == 1:
        return json.dumps(values[0], ensure_ascii=False)
    return f"/(?:{'|'.join(map(literal_pattern, values))})/"


def _counts(low: int, high: int | None) -> str:
    match low, high:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case _:
            return f"{{{low},{'' if high is None else high}}}"


def _unclear(part: AnyText | Pattern) -> UnsupportedConstraintError:
    what = "free text" if isinstance(part, AnyText) else f"the pattern {part.regex.pattern[:60]!r}"
    return UnsupportedConstraintError(
        f"the structural tag cannot be enforced: where {what} ends cannot be told from what follows; let a "
        "string or a control token follow it",
        field="grammar",
    )
