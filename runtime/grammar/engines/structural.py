"""The document of a StructuralTag as a tree: free text, tags, and the constrained regions in them.

The document is JSON, ``{"type": "structural_tag", "format": {...}}`` with the formats below, or a format by
itself, or the older form ``{"triggers": [...], "structures": [{"begin", "schema", "end"}]}``:

    const_string          value
    json_schema           json_schema
    regex                 pattern
    grammar               grammar, syntax (ebnf, lark)
    any_text              excludes
    token                 token: a control token by id or text
    sequence, or          elements
    optional, star, plus  content
    repeat                content, min, max (-1: no bound)
    tag                   begin, content, end (a string, some strings, or a token)
    triggered_tags        triggers, tags, at_least_one, stop_after_first, excludes
    tags_with_separator   tags, separator, at_least_one, stop_after_first

These are the formats of xgrammar's structural tags that are not tied to one engine. A field that is not known
is refused, never ignored.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ramet.runtime.grammar.schema import Pace, SchemaPlan, plan
from ramet.runtime.protocol import Ebnf, InvalidRequestError, Regex

MAX_NESTING = 32
"""Formats inside of formats."""
MAX_REPEATS = 1_000
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Const:
    value: str


@dataclass(frozen=True, slots=True)
class Json:
    plan: SchemaPlan
    place: str = field(default="#", compare=False)


@dataclass(frozen=True, slots=True)
class Pattern:
    regex: Regex
    place: str = field(default="#", compare=False)


@dataclass(frozen=True, slots=True)
class Grammar:
    ebnf: Ebnf
    place: str = field(default="#", compare=False)


@dataclass(frozen=True, slots=True)
class AnyText:
    """Text in which none of ``excludes`` occurs."""

    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A control token: its id, or its text."""

    token: int | str


@dataclass(frozen=True, slots=True)
class Sequence:
    elements: "tuple[Format, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    elements: "tuple[Format, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    content: "Format"
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Tag:
    """``begin content end``; with several ends, any of them."""

    begin: Const | Token
    content: "Format"
    ends: "tuple[Const | Token, ...]"


@dataclass(frozen=True, slots=True)
class TriggeredTags:
    """Free text; a trigger in it begins one of the tags that begin with it."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeparatedTags:
    """Tags with a separator between them, and no other text."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    Const
    | Json
    | Pattern
    | Grammar
    | AnyText
    | Token
    | Sequence
    | Either
    | Repeat
    | Tag
    | TriggeredTags
    | SeparatedTags
)


@dataclass(frozen=True, slots=True)
class StructuralDocument:
    root: Format
    plans: tuple[SchemaPlan, ...]
    """Of every JSON region."""
    has_grammars: bool
    """Whether a region is in EBNF."""


@contextmanager
def told_of(place: str) -> Iterator[None]:
    """An error about the region at ``place`` begins with where in the document that is."""
    try:
        yield
    except InvalidRequestError as error:
        raise type(error)(f"in the structural tag, at {place}: {error}", field=error.field) from None


def read_structural_tag(text: str, pace: Pace | None = None) -> StructuralDocument:
    """Raises InvalidRequestError: it is no structural tag; the message names the place. OverdueError: its
    schemas take longer than ``pace`` allows."""
    reader = _Reader(pace)
    return StructuralDocument(reader.document(text), tuple(reader.plans), reader.has_grammars)


class _Reader:
    """Reads one document; ``plans`` grows with every JSON region."""

    def __init__(self, pace: Pace | None) -> None:
        self._pace = pace
        self.plans: list[SchemaPlan] = []
        self.has_grammars = False
        self._readers: dict[str, Callable[[_Fields, int], Format]] = {
            "const_string": lambda fields, _: Const(fields.text("value")),
            "json_schema": lambda fields, _: self._json(
                fields.take("json_schema"), f"{fields.place}/json_schema"
            ),
            "regex": lambda fields, _: Pattern(Regex(fields.text("pattern")), f"{fields.place}/pattern"),
            "grammar": lambda fields, _: self._grammar(fields),
            "any_text": lambda fields, _: AnyText(fields.texts("excludes", ())),
            "token": lambda fields, _: _token(fields),
            "sequence": lambda fields, depth: Sequence(self._elements(fields, depth)),
            "or": lambda fields, depth: Either(self._elements(fields, depth)),
            "optional": lambda fields, depth: Repeat(self._content(fields, depth), 0, 1),
            "star": lambda fields, depth: Repeat(self._content(fields, depth), 0, None),
            "plus": lambda fields, depth: Repeat(self._content(fields, depth), 1, None),
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def document(self, text: str) -> Format:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the structural tag is not JSON: {error}", field="grammar") from None
        _check_characters(document)
        fields = _Fields(document, "#")
        if "structures" in fields or ("triggers" in fields and "type" not in fields):
            return self._older(fields)
        if fields.value("type") == "structural_tag":
            fields.take("type")
            inner = fields.take("format")
            fields.close()
            return self._format(inner, "#/format", 0)
        return self._format(document, "#", 0)

    def _older(self, fields: "_Fields") -> TriggeredTags:
        triggers = fields.texts("triggers")
        tags = []
        fields.take("type", None)
        for index, structure in enumerate(fields.list("structures")):
            item = _Fields(structure, f"#/structures/{index}")
            begin, end = Const(item.text("begin")), Const(item.text("end"))
            tags.append(Tag(begin, self._json(item.take("schema"), f"{item.place}/schema"), (end,)))
            item.close()
        fields.close()
        return _checked_triggers(TriggeredTags(triggers, tuple(tags)), "#")

    def _format(self, value: object, place: str, depth: int) -> Format:
        if depth > MAX_NESTING:
            raise _wrong(place, f"formats are nested more than {MAX_NESTING} deep", "flatten them")
        fields = _Fields(value, place)
        kind = fields.take("type")
        read = self._readers.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise _wrong(place, f"type is {kind!r}", f"it must be one of {', '.join(self._readers)}")
        made = read(fields, depth + 1)
        fields.close()
        return made

    def _json(self, schema: object, place: str) -> Json:
        if not isinstance(schema, dict | bool):
            raise _wrong(place, "it is no JSON schema", "give an object, true or false")
        with told_of(place):
            planned = plan(schema, pace=self._pace)
        self.plans.append(planned)
        return Json(planned, place)

    def _grammar(self, fields: "_Fields") -> Grammar:
        syntax = fields.take("syntax", "auto")
        if syntax not in ("auto", "ebnf", "gbnf", "lark"):
            raise _wrong(fields.place, f"syntax is {syntax!r}", "it must be ebnf or lark")
        self.has_grammars = True
        ebnf = Ebnf(fields.text("grammar"), syntax="gbnf" if syntax == "ebnf" else str(syntax))
        return Grammar(ebnf, f"{fields.place}/grammar")

    def _elements(self, fields: "_Fields", depth: int) -> tuple[Format, ...]:
        elements = fields.list("elements")
        if not elements:
            raise _wrong(fields.place, "elements is empty", "give at least one format")
        return tuple(
            self._format(element, f"{fields.place}/elements/{index}", depth)
            for index, element in enumerate(elements)
        )

    def _content(self, fields: "_Fields", depth: int) -> Format:
        return self._format(fields.take("content"), f"{fields.place}/content", depth)

    def _repeat(self, fields: "_Fields", depth: int) -> Repeat:
        low, high = fields.integer("min"), fields.integer("max")
        if not 0 <= low <= MAX_REPEATS or not (high == -1 or low <= high <= MAX_REPEATS):
            raise _wrong(
                fields.place,
                f"min is {low} and max is {high}",
                f"they must be in order, from 0 to {MAX_REPEATS}; -1 for max is no bound",
            )
        return Repeat(self._content(fields, depth), low, None if high == -1 else high)

    def _tag(self, fields: "_Fields", depth: int) -> Tag:
        begin = _edge(fields.take("begin"), f"{fields.place}/begin")
        content = self._content(fields, depth)
        end = fields.take("end")
        ends = end if isinstance(end, list) else [end]
        if not ends:
            raise _wrong(fields.place, "end is empty", "give a string, several, or a token")
        return Tag(begin, content, tuple(_edge(item, f"{fields.place}/end") for item in ends))

    def _tags(self, fields: "_Fields", depth: int) -> tuple[Tag, ...]:
        made = []
        for index, value in enumerate(fields.list("tags")):
            place = f"{fields.place}/tags/{index}"
            item = _Fields(value, place)
            kind = item.take("type", "tag")
            if kind != "tag":
                raise _wrong(place, f"type is {kind!r}", "it must be a tag")
            made.append(self._tag(item, depth))
            item.close()
        if not made:
            raise _wrong(fields.place, "tags is empty", "give at least one tag")
        return tuple(made)

    def _triggered(self, fields: "_Fields", depth: int) -> TriggeredTags:
        made = TriggeredTags(
            fields.texts("triggers"),
            self._tags(fields, depth),
            fields.flag("at_least_one"),
            fields.flag("stop_after_first"),
            fields.texts("excludes", ()),
        )
        return _checked_triggers(made, fields.place)

    def _separated(self, fields: "_Fields", depth: int) -> SeparatedTags:
        return SeparatedTags(
            self._tags(fields, depth),
            fields.text("separator"),
            fields.flag("at_least_one"),
            fields.flag("stop_after_first"),
        )


class _Fields:
    """The fields of one JSON object, taken one by one; what is left at the end is refused."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(place, f"it is {str(value)[:40]!r}", "it must be a JSON object")
        self._left: dict[str, object] = dict(value)
        self.place = place

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def value(self, name: str) -> object:
        return self._left.get(name)

    def take(self, name: str, *default: object) -> object:
        if name not in self._left and not default:
            raise _wrong(self.place, f"{name} is missing", "give it")
        return self._left.pop(name, *default)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str):
            raise _wrong(self.place, f"{name} is {str(value)[:40]!r}", "it must be a string")
        return value

    def list(self, name: str) -> list[object]:
        value = self.take(name)
        if not isinstance(value, list):
            raise _wrong(self.place, f"{name} is {str(value)[:40]!r}", "it must be a list")
        return value

    def texts(self, name: str, *default: object) -> tuple[str, ...]:
        value = self.take(name, *default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise _wrong(
                self.place, f"{name} is {str(value)[:40]!r}", "it must be a list of strings, none empty"
            )
        return tuple(item for item in value if isinstance(item, str))

    def flag(self, name: str) -> bool:
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise _wrong(self.place, f"{name} is {str(value)[:40]!r}", "it must be true or false")
        return value

    def integer(self, name: str) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(self.place, f"{name} is {str(value)[:40]!r}", "it must be an integer")
        return value

    def close(self) -> None:
        if self._left:
            raise _wrong(self.place, f"{', '.join(sorted(self._left))} is not known here", "remove it")


def _check_characters(document: object) -> None:
    """Raises InvalidRequestError where a string holds half of a surrogate pair. Schemas are read elsewhere."""
    stack: list[tuple[str, object]] = [("#", document)]
    while stack:
        place, part = stack.pop()
        if isinstance(part, str) and (half := _SURROGATE.search(part)) is not None:
            raise _wrong(
                place, f"it holds {half.group()!a}, half of a surrogate pair, which no text has", "remove it"
            )
        if isinstance(part, dict):
            named = ((name, value) for name, value in part.items() if name not in ("json_schema", "schema"))
            stack += [(f"{place}/{name.encode(errors='replace').decode()}", value) for name, value in named]
        elif isinstance(part, list):
            stack += [(f"{place}/{index}", item) for index, item in enumerate(part)]


def _token(fields: _Fields) -> Token:
    value = fields.take("token")
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise _wrong(fields.place, f"token is {str(value)[:40]!r}", "it must be a token's id or text")
    return Token(value)


def _edge(value: object, place: str) -> Const | Token:
    """A tag's begin or end: a string, or a token."""
    if isinstance(value, str):
        return Const(value)
    fields = _Fields(value, place)
    if fields.take("type") != "token":
        raise _wrong(place, "it is neither a string nor a token", "give one of them")
    made = _token(fields)
    fields.close()
    return made


def _checked_triggers(tags: TriggeredTags, place: str) -> TriggeredTags:
    """Each tag has one trigger, and no trigger hides another one."""
    if not tags.triggers:
        raise _wrong(place, "triggers is empty", "give at least one string")
    for trigger in tags.triggers:
        hidden = [other for other in tags.triggers if other is not trigger and trigger in other]
        if hidden:
            raise _wrong(place, f"the trigger {trigger!r} is part of {hidden[0]!r}", "leave one of them out")
    for tag in tags.tags:
        match tag.begin:
            case Const(value) if any(value.startswith(trigger) for trigger in tags.triggers):
                continue
            case Const(value):
                raise _wrong(place, f"the tag {value!r} begins with no trigger", "add its trigger")
            case _:
                raise _wrong(place, "a triggered tag begins with a token", "begin it with a string")
    unused = [t for t in tags.triggers if not any(_begins(tag, t) for tag in tags.tags)]
    if unused:
        raise _wrong(place, f"no tag begins with the trigger {unused[0]!r}", "add a tag, or remove it")
    return tags


def _begins(tag: Tag, trigger: str) -> bool:
    return isinstance(tag.begin, Const) and tag.begin.value.startswith(trigger)


def _wrong(place: str, problem: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"the structural tag is wrong at {place}: {problem}; {remedy}", field="grammar")
