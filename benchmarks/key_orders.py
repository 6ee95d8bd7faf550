"""A JSON value as text, its keys in an order that a grammar allows, if there is one."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ramet.runtime.grammar import GrammarMatcher, TokenTable
from ramet.runtime.grammar.prefix import accept_bytes
from ramet.runtime.protocol import RequestFailedError

MAX_TRIES = 1_000
"""Keys that are tried before the search gives up."""


def written(value: object) -> str:
    """As JSON. A float that is a whole number, 1.0, is the same value as 1, and is written so."""
    return json.dumps(_whole(value), ensure_ascii=False)


def orders(value: Any, schema: Any, start: GrammarMatcher, tokens: TokenTable) -> Iterator[str]:
    """Texts of the value: as it is; as the schema declares its properties; in the first order found that the
    grammar, at its ``start``, lets through.
    """
    text = written(value)
    yield text
    ordered = _ordered(value, list(_declared(schema)))
    if written(ordered) != text:
        yield written(ordered)
    found = _Search(start.fork(), tokens).text(_whole(ordered))
    if found is not None and found not in (text, written(ordered)):
        yield found


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case _:
            return value


def _declared(schema: Any) -> Iterator[list[str]]:
    """The names of each ``properties`` in the schema, in their order."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            required = schema.get("required")
            extra = [name for name in required if name not in properties] if isinstance(required, list) else []
            yield [*properties, *extra]
        for value in schema.values():
            yield from _declared(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _declared(value)


def _ordered(value: Any, declared: Sequence[list[str]]) -> Any:
    if isinstance(value, list):
        return [_ordered(item, declared) for item in value]
    if not isinstance(value, dict):
        return value
    names = max(declared, key=lambda known: len(value.keys() & set(known)), default=[])
    places = {name: place for place, name in enumerate(names)}
    keys = sorted(value, key=lambda key: places.get(key, len(places)))
    return {key: _ordered(value[key], declared) for key in keys}


class _Search:
    """Writes a value byte by byte; where a key is not allowed, or leads nowhere, the next one is tried."""

    def __init__(self, matcher: GrammarMatcher, tokens: TokenTable) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._text = b""
        self._tries = 0

    def text(self, value: Any) -> str | None:
        """None: no order is allowed, or none was found in time."""
        try:
            for _ in self._written([value]):
                return self._text.decode()
        except (RequestFailedError, RecursionError):
            # A value of thousands of members is too deep for a search by recursion.
            return None
        return None

    def _written(self, pending: list[Any]) -> Iterator[None]:
        """Yields where all that is pending has been written. ``pending``: values and, as bytes, texts; the last
        is written first. An object is pending as the dict of those of its members that are to come.
        """
        if not pending:
            yield
            return
        *rest, head = pending
        match head:
            case bytes():
                yield from self._after(head, rest)
            case list():
                items = [part for item in reversed(head) for part in (item, b", ")][:-1] if head else []
                yield from self._after(b"[", [*rest, b"]", *items])
            case dict():
                yield from self._after(b"{", [*rest, _Members(head)])
            case _Members():
                yield from self._members(head, rest)
            case _:
                yield from self._after(json.dumps(head, ensure_ascii=False).encode(), rest)

    def _members(self, members: "_Members", rest: list[Any]) -> Iterator[None]:
        if not members.left:
            yield from self._after(b"}", rest)
            return
        for key, value in members.left.items():
            self._tries += 1
            if self._tries > MAX_TRIES:
                return
            left = {other: item for other, item in members.left.items() if other != key}
            name = json.dumps(key, ensure_ascii=False).encode() + b": "
            comma = b"" if members.is_first else b", "
            yield from self._after(comma + name, [*rest, _Members(left, is_first=False), value])

    def _after(self, text: bytes, rest: list[Any]) -> Iterator[None]:
        accepted = accept_bytes(self._matcher, text, self._tokens)
        if accepted == len(text):
            self._text += text
            yield from self._written(rest)
            self._text = self._text[: len(self._text) - len(text)]
        if accepted:
            self._matcher.rollback(accepted)


class _Members:
    """Members of an object that are not written yet."""

    def __init__(self, left: dict[str, Any], *, is_first: bool = True) -> None:
        self.left = left
        self.is_first = is_first
