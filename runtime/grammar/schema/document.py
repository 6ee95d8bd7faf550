"""A schema document: its draft, where its subschemas are, and what its references point to."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal
from urllib.parse import unquote, urldefrag, urljoin

from ramet.runtime.grammar.schema.limits import SchemaLimits, check_json_text
from ramet.runtime.protocol import InvalidRequestError

Draft = Literal[4, 6, 7, 2019, 2020]
Schema = dict[str, object] | bool

_DRAFTS: dict[str, Draft] = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_NO_BASE = "http://schema.invalid/"
"""Of a schema without an id, so that relative references in it resolve."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subschema: its JSON pointer in the document and the URI that its references are relative to."""

    pointer: str
    base: str


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed schema. ``names``: full URI (with an anchor as its fragment) -> pointer."""

    root: Schema
    draft: Draft
    declared: bool
    """It says which draft it is of."""
    names: Mapping[str, str]
    dynamic: Mapping[str, tuple[str, ...]]
    """$dynamicAnchor -> the pointers that declare it."""
    bases: Mapping[str, str]
    """Pointer of a schema with an id -> its URI."""

    def base_at(self, pointer: str) -> str:
        """The base URI inside the schema at ``pointer``."""
        while pointer not in self.bases and pointer:
            pointer = pointer.rpartition("/")[0]
        return self.bases.get(pointer, _NO_BASE)

    def has(self, pointer: str) -> bool:
        """Something is at ``pointer``."""
        return _walk(self.root, pointer) is not None

    def at(self, pointer: str) -> object:
        """The value at ``pointer``, which exists."""
        found = _walk(self.root, pointer)
        assert found is not None
        return found[0]

    def resolve(self, reference: str, pointer: str) -> str:
        """The pointer that ``reference`` in the schema at ``pointer`` points to.

        Raises:
            InvalidRequestError: it points outside the document, or nowhere.
        """
        base = self.base_at(pointer)
        uri, fragment = urldefrag(_join(base, reference))
        at = f"#{pointer}/$ref"
        if uri not in self.names:
            raise InvalidRequestError(
                f"{at}: {reference!r} points outside the schema, and nothing is fetched; "
                "copy what it points to into $defs and refer to that",
                field="grammar",
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            target = self.names.get(f"{uri}#{fragment}")
        else:
            target = self.names[uri] + fragment
        if target is None or (found := _walk(self.root, target)) is None:
            raise InvalidRequestError(
                f"{at}: {reference!r} points to nothing in the schema; correct it or add what it names",
                field="grammar",
            )
        if not isinstance(found[0], dict | bool):
            raise InvalidRequestError(
                f"{at}: {reference!r} points to {type(found[0]).__name__}, which is no schema", field="grammar"
            )
        return found[1]

    def inner(self, pointer: str) -> Iterator[str]:
        """The pointers of the schemas directly inside of the one at ``pointer``, and of what it refers to:
        required properties before others; definitions only where they are referred to."""
        schema = self.at(pointer)
        if not isinstance(schema, dict):
            return
        required = schema.get("required")
        needed = frozenset(map(str, required)) if isinstance(required, list) else frozenset()
        for keyword, value in schema.items():
            here = step(pointer, keyword)
            if keyword in _NAMED and keyword not in ("$defs", "definitions") and isinstance(value, dict):
                names = [name for name, part in value.items() if isinstance(part, dict | bool)]
                yield from (step(here, name) for name in sorted(names, key=lambda name: name not in needed))
            elif keyword in _LISTED and isinstance(value, list):
                yield from (step(here, index) for index in range(len(value)))
            elif keyword in _SINGLE and isinstance(value, dict | bool):
                yield here
            elif keyword == "$ref" and isinstance(value, str):
                yield self.resolve(value, pointer)


def load(text: str, limits: SchemaLimits) -> Document:
    """Parses ``text``. Raises InvalidRequestError where it is no JSON schema or exceeds a limit."""
    root = parse_json(text, limits)
    if not isinstance(root, dict | bool):
        raise InvalidRequestError(
            f"the schema is a JSON {_kind(root)}; it must be an object, true or false", field="grammar"
        )
    _check_characters(text, root)
    declared = root.get("$schema") if isinstance(root, dict) else None
    draft = _draft(declared)
    names: dict[str, str] = {}
    dynamic: dict[str, list[str]] = {}
    bases: dict[str, str] = {}
    # An id is resolved against the base of the schema around it, so parents come before children.
    for pointer, schema in _schemas(root):
        outer = bases.get(_nearest(pointer, bases), _NO_BASE)
        identifier = schema.get("id" if draft == 4 else "$id")
        if not pointer:
            names[_NO_BASE] = ""
            bases[""] = _NO_BASE
        if isinstance(identifier, str) and not (draft <= 7 and "$ref" in schema and pointer):
            full, fragment = urldefrag(_join(outer, identifier))
            if fragment and draft <= 7:
                names.setdefault(f"{full}#{fragment}", pointer)
            if not identifier.startswith("#"):
                bases[pointer] = full
                names.setdefault(full, pointer)
        here = bases.get(_nearest(pointer, bases), _NO_BASE)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                names.setdefault(f"{here}#{anchor}", pointer)
                if keyword == "$dynamicAnchor":
                    dynamic.setdefault(anchor, []).append(pointer)
    if isinstance(root, bool):
        names[_NO_BASE] = ""
    return Document(
        root=root,
        draft=draft,
        declared=isinstance(declared, str),
        names=names,
        dynamic={anchor: tuple(pointers) for anchor, pointers in dynamic.items()},
        bases=bases,
    )


def parse_json(text: str, limits: SchemaLimits) -> object:
    """The JSON value, in its key order. Raises InvalidRequestError, also for a key that stands twice."""
    check_json_text(text, limits)
    try:
        return json.loads(
            text, object_pairs_hook=_unique_object, parse_constant=_no_constant, parse_float=_float
        )
    except InvalidRequestError:
        raise
    except ValueError as error:
        raise InvalidRequestError(f"the schema is no JSON: {error}", field="grammar") from None


def step(pointer: str, *keys: str | int) -> str:
    """``pointer`` extended by ``keys``, escaped as RFC 6901 has it."""
    return pointer + "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)


def _draft(declared: object) -> Draft:
    if declared is None:
        return 2020
    if not isinstance(declared, str):
        raise InvalidRequestError(f"#/$schema: {declared!r} is no URI of a draft", field="grammar")
    name = declared.removesuffix("#").partition("://")[2]
    if name not in _DRAFTS:
        raise InvalidRequestError(
            f"#/$schema: {declared[:200]!r} is no draft that is known here; "
            f"known are {', '.join(f'http://{known}' for known in _DRAFTS)}",
            field="grammar",
        )
    return _DRAFTS[name]


def _schemas(root: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Every subschema that is an object, parents first. What stands under an unknown keyword is none."""
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        pointer, schema = stack.pop()
        if not isinstance(schema, dict):
            continue
        yield pointer, schema
        for keyword, value in schema.items():
            at = step(pointer, keyword)
            if keyword in _NAMED and isinstance(value, dict):
                stack += [(step(at, name), member) for name, member in value.items()]
            elif keyword in _LISTED and isinstance(value, list):
                stack += [(step(at, index), item) for index, item in enumerate(value)]
            elif keyword in _SINGLE:
                stack.append((at, value))


_NAMED = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose value maps names, which are no keywords, to schemas."""
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)


def _check_characters(text: str, root: object) -> None:
    """Raises InvalidRequestError where a value or a name that matters has half of a surrogate pair."""
    if _HALF.search(text) is None:
        return
    for pointer, schema in _schemas(root):
        for keyword, value in schema.items():
            at = step(pointer, keyword)
            names = value if keyword in _NAMED and isinstance(value, dict) else ()
            for where, string in [*((at, name) for name in names), *_strings(value, at, keyword)]:
                if (found := _SURROGATE.search(string)) is not None:
                    raise InvalidRequestError(
                        f"#{where.encode(errors='backslashreplace').decode()} holds "
                        f"{found.group()!a}, half of a surrogate pair, which no text has; write the whole "
                        "character, or remove it",
                        field="grammar",
                    )


def _strings(value: object, pointer: str, keyword: str) -> Iterator[tuple[str, str]]:
    """The strings in a keyword's value with their pointers, names too, where they are no mere annotations."""
    stack: list[tuple[str, object]] = [(pointer, value)] if keyword in _SPELLED else []
    while stack:
        at, part = stack.pop()
        if isinstance(part, str):
            yield at, part
        elif isinstance(part, dict):
            yield from ((at, name) for name in part)
            stack += [(step(at, name), member) for name, member in part.items()]
        elif isinstance(part, list):
            stack += [(step(at, index), item) for index, item in enumerate(part)]


_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""What a text has that holds half of a surrogate pair, and maybe others."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPELLED = frozenset({"const", "enum", "required", "pattern", "dependentRequired", "dependencies", "$ref"})


def _nearest(pointer: str, bases: Mapping[str, str]) -> str:
    while pointer and pointer not in bases:
        pointer = pointer.rpartition("/")[0]
    return pointer


def _walk(root: object, pointer: str) -> tuple[object, str] | None:
    """What stands at ``pointer``, and the pointer in its usual spelling; None: nothing does."""
    value = root
    spelled = ""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
        spelled = step(spelled, key)
    return value, spelled


def _unique_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequestError(
            f"the schema has the key {twice[:100]!r} twice in one object; remove one", field="grammar"
        )
    return result


def _no_constant(name: str) -> object:
    raise InvalidRequestError(f"the schema holds {name}, which is no JSON", field="grammar")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise InvalidRequestError(
            f"the schema holds the number {text[:40]}, which is too large", field="grammar"
        )
    return value


def _join(base: str, reference: str) -> str:
    """``reference`` against ``base``; urljoin knows no fragments of URNs."""
    return base + reference if reference.startswith("#") or not reference else urljoin(base, reference)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "number"
