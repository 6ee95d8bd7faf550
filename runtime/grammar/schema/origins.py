"""Where in the caller's schema a refusal belongs.

What is refused is found in what the schema was rewritten to, where a keyword may stand that the caller never
wrote (a `not` that a oneOf came to) or at a place that the caller's schema does not have.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ramet.runtime.grammar.schema.document import Document, step
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.protocol import InvalidRequestError

_MAX_LOOKED_AT = 2_000
"""Schemas that are looked at for a keyword, of those that hold for the same value."""
_CAUSES: Mapping[str, tuple[str, ...]] = {
    "not": (
        "not",
        "oneOf",
        "if",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "maxContains",
        "contains",
        "uniqueItems",
    ),
    "contains": ("contains", "minContains", "maxContains"),
    "minProperties": ("minProperties", "required", "dependentRequired", "not", "oneOf", "if"),
    "maxProperties": ("maxProperties", "propertyNames", "not", "oneOf", "if"),
}
"""Of a keyword of the rewritten schema: keywords that it can come from, the likeliest first."""
_LISTED = ("allOf", "anyOf", "oneOf")
_CONTAINERS = frozenset({"$defs", "properties", "patternProperties", "anyOf", "allOf", "prefixItems"})
"""Keywords of the plain dialect whose value has schemas inside."""
_SINGLE = ("if", "then", "else", "not")
_BY_NAME = ("dependentSchemas", "dependencies")

Origins = Mapping[int, tuple[object, str]]
"""By the identity of an object of the plain dialect: that object, and its pointer in the caller's schema."""


def in_source(issue: Unsupported, document: Document) -> Unsupported:
    """``issue`` with a location that ``document`` has: the keyword that is to blame, or as little as is around
    it and known."""
    pointer = _existing(issue.pointer, document)
    if pointer == issue.pointer and document.has(step(pointer, issue.keyword)):
        return issue
    causes = _CAUSES.get(issue.keyword, (issue.keyword,))
    around: str | None = pointer
    while around is not None:
        for keyword in causes:
            at = next((at for at in _same_value(around, document) if document.has(step(at, keyword))), None)
            if at is not None:
                return replace(issue, pointer=at, keyword=keyword)
        around = around.rpartition("/")[0] if around else None
    return replace(issue, pointer=pointer, keyword="")


def origin_of(pointer: str, schema: object, origins: Origins, document: Document) -> str:
    """The pointer in ``document`` of the schema that the plain ``schema`` has at ``pointer``, or of what is
    around it."""
    value, at = schema, origins.get(id(schema), (None, ""))[1]
    keys = iter(key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:])
    for keyword in keys:
        path = (keyword, next(keys, "")) if keyword in _CONTAINERS else (keyword,)
        for key in path:
            value = (
                value[int(key)]
                if isinstance(value, list)
                else value.get(key)
                if isinstance(value, dict)
                else None
            )
        known = origins.get(id(value))
        if known is not None:
            at = known[1]
        elif document.has(inner := step(at, *path)):
            # Most of a plain schema stands where the caller's does.
            at = inner
    return _existing(at, document)


def _existing(pointer: str, document: Document) -> str:
    while pointer and not document.has(pointer):
        pointer = pointer.rpartition("/")[0]
    return pointer


def _same_value(pointer: str, document: Document) -> Iterator[str]:
    """The schemas that are applied to the value that the one at ``pointer`` is applied to, itself first."""
    queue, met = deque([pointer]), {pointer}
    while queue:
        at = queue.popleft()
        yield at
        schema = document.at(at)
        if not isinstance(schema, dict) or len(met) > _MAX_LOOKED_AT:
            continue
        inner: list[str] = []
        for keyword in _LISTED:
            part = schema.get(keyword)
            inner += [step(at, keyword, index) for index in range(len(part))] if isinstance(part, list) else []
        inner += [step(at, keyword) for keyword in _SINGLE if keyword in schema]
        for keyword in _BY_NAME:
            part = schema.get(keyword)
            inner += [step(at, keyword, name) for name in part] if isinstance(part, dict) else []
        inner += _referred(schema.get("$ref"), at, document)
        for other in inner:
            if other not in met:
                met.add(other)
                queue.append(other)


def _referred(reference: object, at: str, document: Document) -> list[str]:
    try:
        return [document.resolve(reference, at)] if isinstance(reference, str) else []
    except InvalidRequestError:
        # In a part of the schema that nothing uses.
        return []
