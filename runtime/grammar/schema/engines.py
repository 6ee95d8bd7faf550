"""What each engine would not enforce of a schema in the plain dialect that plans are written in.

From measurements of llguidance 1.9, xgrammar 0.2.9 and outlines-core 0.2.14. An engine is named as an obstacle
where it silently accepts more, rejects what is valid, or hangs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ramet.runtime.grammar.schema.charset import CharSet, contains
from ramet.runtime.grammar.schema.document import step
from ramet.runtime.grammar.schema.emit_strings import is_loose
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_parser import Alt, Chars, Regex, Repeat, Seq, UnsupportedPatternError
from ramet.runtime.grammar.schema.regex_syntax import parse_pattern

_MOST_LISTED = 20
_XGRAMMAR_MAX_ENUM = 2_000
_OUTLINES_MAX_ENUM = 200
_OUTLINES_MAX_LENGTH = 64
_OUTLINES_MAX_OPTIONAL = 20
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

Schema = dict[str, object]
Found = Iterator[tuple[str, str]]
"""(keyword, why)."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Of one of the regexes that a pattern demands. ``is_read``: False: it is too large to read again."""

    is_read: bool = True
    is_loose: bool = False
    has_escaped: bool = False
    hangs: bool = False
    is_widened: bool = False


Known = dict[str, tuple[_Facts, ...]]
"""By pattern: the same one, such as a format's, stands in many places."""


class Obstacles(Mapping[str, tuple[Unsupported, ...]]):
    """By engine, what of a plan's ``schema`` it cannot do; an engine without obstacles is left out.

    Worked out when an engine is asked for: most plans are only ever asked about the first one. Threads may ask
    at once; each then works out the same.
    """

    def __init__(
        self, schema: Schema | bool, limits: SchemaLimits, locate: Callable[[Unsupported], Unsupported]
    ) -> None:
        """``locate``: from one at a pointer of ``schema`` to the same at one of the caller's."""
        self._schema = schema
        self._locate = locate
        self._limits = limits
        self._known: Known = {}
        self._found: dict[str, tuple[Unsupported, ...]] = {}

    def __getitem__(self, engine: str) -> tuple[Unsupported, ...]:
        if engine not in _RULES:
            raise KeyError(engine)
        if engine not in self._found:
            self._found[engine] = self._search(engine)
        if not self._found[engine]:
            raise KeyError(engine)
        return self._found[engine]

    def __iter__(self) -> Iterator[str]:
        return (engine for engine in _RULES if self.get(engine))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _search(self, engine: str) -> tuple[Unsupported, ...]:
        rules = _RULES[engine]
        found: list[Unsupported] = []
        for pointer, part in subschemas(self._schema):
            for text in _texts(part):
                if text not in self._known:
                    self._known[text] = _facts(text, self._limits)
            found += [
                Unsupported(pointer, keyword, f"{engine} {why}", "use another engine, or simplify this")
                for keyword, why in rules(part, self._known)
            ]
            if len(found) >= _MOST_LISTED:
                break
        return tuple(dict.fromkeys(map(self._locate, found)))


def subschemas(schema: Schema | bool) -> Iterator[tuple[str, Schema]]:
    """Every schema object of the plain dialect with its pointer, parents first."""
    stack: list[tuple[str, object]] = [("", schema)]
    while stack:
        pointer, part = stack.pop()
        if not isinstance(part, dict):
            continue
        yield pointer, part
        for keyword in ("$defs", "properties", "patternProperties"):
            members = part.get(keyword)
            if isinstance(members, dict):
                stack += [(step(pointer, keyword, name), member) for name, member in members.items()]
        for keyword in ("anyOf", "allOf", "prefixItems"):
            members = part.get(keyword)
            if isinstance(members, list):
                stack += [(step(pointer, keyword, index), member) for index, member in enumerate(members)]
        stack += [(step(pointer, keyword), part.get(keyword)) for keyword in ("items", "additionalProperties")]


def _guidance(part: Schema, known: Known) -> Found:
    for keyword, facts in _patterns(part, known):
        if facts.is_loose:
            yield keyword, "lets an escaped quote or backslash through where NUL is allowed"


def _xgrammar(part: Schema, known: Known) -> Found:
    values = _values(part)
    if any(isinstance(value, dict | list) for value in values):
        yield "enum", "writes objects and arrays of an enum in one spelling only"
    if len(values) > _XGRAMMAR_MAX_ENUM:
        yield "enum", f"needs too long for an enum of {len(values)} values"
    if "allOf" in part:
        yield "allOf", "ignores all branches of allOf but one"
    if "pattern" in part and ("minLength" in part or "maxLength" in part):
        yield "pattern", "ignores a length beside a pattern"
    if "multipleOf" in part and part.get("type") != "integer":
        yield "multipleOf", "may ignore multipleOf of numbers"
    yield from _pattern(part, known)
    for keyword, facts in _patterns(part, known):
        if facts.is_widened:
            yield keyword, "may misread a repetition inside of an alternative or of a bounded repetition"
    if (
        part.get("type") == "object"
        and "patternProperties" in part
        and ("properties" in part or part.get("additionalProperties") is not False)
    ):
        yield "patternProperties", "mixes patterns of names with other names"
    if "properties" in part and part.get("additionalProperties") is not False:
        yield "additionalProperties", "lets an open name repeat a listed one"
    if "properties" in part and ("minProperties" in part or "maxProperties" in part):
        yield "minProperties", "may miscount properties"


def _outlines(part: Schema, known: Known) -> Found:
    values = _values(part)
    if any(
        isinstance(value, dict | list) or (isinstance(value, str) and _needs_escape(value)) for value in values
    ):
        yield "enum", "does not write these values as JSON"
    if len(values) > _OUTLINES_MAX_ENUM:
        yield "enum", f"needs too long for an enum of {len(values)} values"
    for keyword in ("$ref", "allOf", "prefixItems", "patternProperties", "minProperties", "maxProperties"):
        if keyword in part:
            yield keyword, f"does not enforce {keyword}"
    for keyword in _NUMERIC:
        if keyword in part:
            yield keyword, f"ignores {keyword}"
    for keyword in ("minLength", "maxLength", "minItems", "maxItems"):
        bound = part.get(keyword)
        if isinstance(bound, int) and bound > _OUTLINES_MAX_LENGTH:
            yield keyword, f"needs too long for {keyword} {bound}"
    if "pattern" in part and ("minLength" in part or "maxLength" in part):
        yield "pattern", "may ignore a length beside a pattern"
    yield from _pattern(part, known)
    yield from _outlines_shape(part)


def _outlines_shape(part: Schema) -> Found:
    types = part.get("type")
    if isinstance(types, list) or (types == "object" and part.get("additionalProperties") is not False):
        yield "type", "rejects open objects and lists of types"
    elif not part.keys() & {"type", "enum", "const", "anyOf", "$ref", "pattern"}:
        yield "type", "does not enforce a schema without a type"
    properties, required = part.get("properties"), part.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        optional = len(properties) - len(required)
        if optional > _OUTLINES_MAX_OPTIONAL:
            yield "properties", f"needs too long for {optional} optional properties"


def _pattern(part: Schema, known: Known) -> Found:
    """For engines that are not aware of JSON's escapes, or slow where repetitions nest."""
    for keyword, facts in _patterns(part, known):
        if not facts.is_read:
            yield keyword, "may need too long for a pattern of this size"
        if facts.has_escaped:
            yield keyword, "does not write quotes, backslashes or control characters of a pattern as JSON"
        if facts.hangs:
            yield keyword, "can hang on a repetition inside a bounded repetition"


def _patterns(part: Schema, known: Known) -> Iterator[tuple[str, _Facts]]:
    """(keyword, facts) of each regex of each pattern."""
    for text in _texts(part):
        keyword = "pattern" if text == part.get("pattern") else "patternProperties"
        for facts in known[text]:
            yield keyword, facts


def _texts(part: Schema) -> list[str]:
    members = part.get("patternProperties")
    texts = [part["pattern"]] if "pattern" in part else []
    return [text for text in (*texts, *(members if isinstance(members, dict) else ())) if isinstance(text, str)]


def _facts(text: str, limits: SchemaLimits) -> tuple[_Facts, ...]:
    try:
        trees = parse_pattern(text, limits).required
    except UnsupportedPatternError:
        return (_Facts(is_read=False),)
    return tuple(
        _Facts(
            is_loose=any(map(is_loose, classes)),
            has_escaped=any(map(_has_escaped, classes)),
            hangs=_hangs(tree, inside=False),
            is_widened=_is_widened(tree, inside=False),
        )
        for tree in trees
        for classes in [_classes(tree)]
    )


def _values(part: Schema) -> list[object]:
    values = part.get("enum", [])
    return [part["const"]] if "const" in part else list(values) if isinstance(values, list) else []


def _has_escaped(chars: CharSet) -> bool:
    return chars[0][0] < 0x20 or contains(chars, 0x22) or contains(chars, 0x5C) if chars else False


def _needs_escape(text: str) -> bool:
    return any(character < " " or character in '"\\' for character in text)


def _classes(tree: Regex) -> set[CharSet]:
    found: set[CharSet] = set()
    stack = [tree]
    while stack:
        match stack.pop():
            case Chars(chars):
                found.add(chars)
            case Seq(items) | Alt(items):
                stack += items
            case Repeat(item):
                stack.append(item)
    return found


def _hangs(tree: Regex, *, inside: bool) -> bool:
    """A repetition of many or any number stands inside a bounded repetition of several."""
    match tree:
        case Seq(items) | Alt(items):
            return any(_hangs(item, inside=inside) for item in items)
        case Repeat(item, low, high):
            wide = high is None or high - low > 1
            bounded = high is not None and high > 2
            return (inside and wide) or _hangs(item, inside=inside or bounded)
        case _:
            return False


def _is_widened(tree: Regex, *, inside: bool) -> bool:
    """A repetition without a fixed count stands inside an alternative, or inside a repetition that has a bound:
    of ``^a(?:b+c)?$`` xgrammar's automaton takes "ab", of ``^(?:c{1,2}|c)$`` any number of c."""
    match tree:
        case Seq(items):
            return any(_is_widened(item, inside=inside) for item in items)
        case Alt(items):
            return any(_is_widened(item, inside=True) for item in items)
        case Repeat(item, low, high):
            return (inside and low != high) or _is_widened(item, inside=inside or high is not None)
        case _:
            return False


_RULES: Mapping[str, Callable[[Schema, Known], Found]] = MappingProxyType(
    {"llguidance": _guidance, "xgrammar": _xgrammar, "outlines": _outlines}
)
