"""ClosingMatcher: a JSON document that is about to be cut is closed instead.

At every place an ending is known: tokens that the grammar has been seen to take, behind which the document is
complete, and that fit what is left of the request's tokens. A token behind which no such ending is found is not
accepted; from there on the ending is the only thing that is. So whatever is sampled, the document is complete
when the tokens are used up, and it differs from a plain answer only in its last, closing tokens.

An ending is looked for byte by byte, in a fixed order of choices (end the string, the object, the list, the
shortest kinds of values), and spelled with the fewest tokens: short, and for ordinary schemas the shortest.
Where that meets a string's pattern nowhere, the shortest text of the pattern's own characters is looked for.
"""

import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.backend import ForcedText, GrammarMatcher
from ramet.runtime.grammar.token_table import TokenTable
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    UnsupportedConstraintError,
)

MAX_ENDING_BYTES = 1024
MAX_LIKELY = 16
"""Characters that are tried in strings with patterns."""
MAX_ACCEPTS = 20_000
"""Tokens that a matcher is asked about for one string: tens of milliseconds."""
MAX_TOKEN_BYTES = 32
"""Of the tokens that an ending is spelled with: longer ones spell runs of one character."""

_OUTSIDE = b'}],:0123456789"ntf[{-.eE+ '
_DIGITS = b"0123456789"
_INSIDE = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ -_.:/@+,;!?()[]{}<>=*&%#$'~^|`"
_CLASS = re.compile(r"\\([dwsDWS])")
_MEMBERS = MappingProxyType({"d": "0", "w": "a", "s": " ", "D": "a", "W": " ", "S": "a"})
_CONTINUED = bytes(range(0x80, 0xC0))
_ESCAPED = b'"\\/nbfrtu'


class TextPlace(NamedTuple):
    """Where in a JSON text one is, as far as the order of choices depends on it."""

    num_skipped: int = 0
    """Bytes still to come that are no JSON: the prompt's, which a Prefix spells again."""
    in_string: bool = False
    is_escaped: bool = False
    last: int = 0

    def after(self, text: bytes) -> "TextPlace":
        skipped, in_string, is_escaped, last = self
        for byte in text:
            if skipped:
                skipped -= 1
                continue
            last = byte
            if is_escaped:
                is_escaped = False
            elif in_string and byte == 0x5C:
                is_escaped = True
            elif byte == 0x22:
                in_string = not in_string
        return TextPlace(skipped, in_string, is_escaped, last)

    def choices(self) -> bytes:
        """The bytes to try next, the best first."""
        if self.is_escaped:
            return _ESCAPED
        if self.in_string:
            # In turn, so that a pattern such as a*b, or a multiple, is met in the end.
            return b'"' + _behind(_INSIDE, self.last) + _CONTINUED + b"\\"
        digits = _behind(_DIGITS, self.last)
        return _OUTSIDE.replace(_DIGITS, digits)


class ClosingTokens:
    """A tokenizer's tokens as endings need them. Immutable; one per tokenizer."""

    def __init__(self, table: TokenTable) -> None:
        self.bytes_of = table.bytes_of
        self.stop_token_ids = table.stop_token_ids
        self.ids = {
            string: ids[0]
            for string, ids in zip(table.strings, table.ids, strict=True)
            if len(string) <= MAX_TOKEN_BYTES
        }

    def spell(self, text: bytes) -> list[int]:
        """With the fewest tokens. Each byte of ``text`` has a token of its own."""
        size = len(text)
        # For each place the number of tokens from there on, and where the first of them ends.
        counts, ends = [0] * (size + 1), [0] * size
        for start in reversed(range(size)):
            counts[start], ends[start] = min(
                (counts[end] + 1, -end)
                for end in range(start + 1, min(start + MAX_TOKEN_BYTES, size) + 1)
                if text[start:end] in self.ids
            )
        token_ids, at = [], 0
        while at < size:
            token_ids.append(self.ids[text[at : -ends[at]]])
            at = -ends[at]
        return token_ids


@dataclass(frozen=True, slots=True)
class _Step:
    """Behind one accepted token (or none): where the text is, and how it can end."""

    place: TextPlace
    ending: tuple[int, ...]


class ClosingMatcher:
    """A GrammarMatcher, and a ClosingGrammar, around another.

    Invariant: ``_steps`` has one entry for each accepted token and one for the start; the last one's ending is
    accepted from here, completes the document, and is at most as long as what is left of ``max_tokens``.
    """

    def __init__(
        self,
        matcher: GrammarMatcher,
        tokens: ClosingTokens,
        max_tokens: int,
        num_skipped: int = 0,
        likely: bytes = b"",
    ):
        """``max_tokens``: of the whole answer. ``num_skipped``: bytes before the JSON begins. ``likely``: what
        a string may have to hold before it can end.

        Raises:
            UnsupportedConstraintError: no ending was found, or none of at most ``max_tokens`` tokens.
        """
        self._matcher = matcher
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._likely = likely
        self._closing_from: int | None = None
        """How many tokens were accepted when the ending became all that is."""
        self._steps: list[_Step] = []
        place = TextPlace(num_skipped)
        ending = _find_ending(matcher, tokens, place, likely)
        if ending is None:
            raise UnsupportedConstraintError(
                f"close_on_length is true, and no complete answer of at most {MAX_ENDING_BYTES} bytes was "
                "found for the schema; leave it out, or make the schema simpler",
                field="close_on_length",
            )
        if len(ending) > max_tokens:
            raise UnsupportedConstraintError(
                f"close_on_length is true, and a complete answer takes at least {len(ending)} tokens, of which "
                f"there may be {max_tokens}; raise max_tokens",
                field="close_on_length",
            )
        self._steps.append(_Step(place, ending))

    @property
    def is_closing(self) -> bool:
        return self._closing_from is not None

    def begin_closing(self, token_id: int) -> bool:
        """The ending is all that is accepted from now on, because ``token_id``, which the grammar allows, does
        not leave room for one. False: the grammar forbids it too."""
        if self.is_closing or not self._matcher.accept(token_id):
            return False
        self._matcher.rollback(1)
        self._closing_from = len(self._steps) - 1
        return True

    def accept(self, token_id: int) -> bool:
        step = self._steps[-1]
        if self.is_closing:
            expected = step.ending[:1] or self._tokens.stop_token_ids
            if token_id not in expected or not self._matcher.accept(token_id):
                return False
            self._steps.append(_Step(step.place, step.ending[1:]))
            return True
        if not self._matcher.accept(token_id):
            return False
        place = step.place.after(self._tokens.bytes_of.get(token_id, b""))
        ending = self._ending_behind(token_id, place, step.ending)
        if ending is None:
            self._matcher.rollback(1)
            return False
        self._steps.append(_Step(place, ending))
        return True

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        self._matcher.fill_bitmask(row)
        if not self.is_closing or self._matcher.is_terminated():
            return
        allowed = self._steps[-1].ending[:1] or self._tokens.stop_token_ids
        kept = [(token_id // 32, int(row[token_id // 32]) & _bit(token_id)) for token_id in allowed]
        row.fill(0)
        for word, bit in kept:
            row[word] |= np.int32(bit)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self._steps):
            raise ValueError(f"cannot roll back {num_tokens} tokens: {len(self._steps) - 1} were accepted")
        self._matcher.rollback(num_tokens)
        del self._steps[len(self._steps) - num_tokens :]
        if self._closing_from is not None and len(self._steps) <= self._closing_from:
            self._closing_from = None

    def forced_tokens(self) -> list[int]:
        return list(self._steps[-1].ending) if self.is_closing else self._matcher.forced_tokens()

    def forced_bytes(self) -> bytes:
        """See ForcedText."""
        if self.is_closing or not isinstance(self._matcher, ForcedText):
            return b""
        return self._matcher.forced_bytes()

    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()

    def is_unconstrained(self) -> bool:
        return False

    def fork(self) -> "ClosingMatcher":
        fork = object.__new__(ClosingMatcher)
        fork._matcher = self._matcher.fork()
        fork._tokens = self._tokens
        fork._max_tokens = self._max_tokens
        fork._likely = self._likely
        fork._closing_from = self._closing_from
        fork._steps = list(self._steps)
        return fork

    def _ending_behind(
        self, token_id: int, place: TextPlace, before: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """One that fits, behind ``token_id``, which the matcher has just accepted; ``before``: the one before
        it."""
        room = self._max_tokens - len(self._steps)
        if room < 0:
            return None
        if self._matcher.is_terminated():
            return ()
        if before[:1] == (token_id,):
            return before[1:]
        if len(before) <= room and _completes(self._matcher, before, self._tokens):
            return before
        found = _find_ending(self._matcher, self._tokens, place, self._likely)
        return found if found is not None and len(found) <= room else None


def closing_matcher(
    matcher: GrammarMatcher, spec: GrammarSpec | None, tokens: ClosingTokens, max_tokens: int
) -> ClosingMatcher:
    """For an answer of ``spec`` of at most ``max_tokens`` tokens.

    Raises:
        InvalidRequestError: it is no JSON.
        UnsupportedConstraintError: see ClosingMatcher.
    """
    inner = spec.inner if isinstance(spec, Prefix) else spec
    if not isinstance(inner, JsonSchema):
        raise InvalidRequestError(
            "close_on_length is true, and closes JSON alone; give a JsonSchema as grammar, or leave it out",
            field="close_on_length",
        )
    num_skipped = len(spec.text.encode()) if isinstance(spec, Prefix) else 0
    return ClosingMatcher(matcher, tokens, max_tokens, num_skipped, likely_bytes(inner.schema))


def likely_bytes(schema: str) -> bytes:
    """The characters of a schema's patterns, and one for each class in them: a text of these alone meets most
    patterns. Empty: it has no patterns."""
    found: dict[str, None] = {}
    stack: list[object] = [json.loads(schema)]
    while stack:
        match stack.pop():
            case dict() as part:
                if isinstance(pattern := part.get("pattern"), str):
                    found |= dict.fromkeys(_CLASS.sub(lambda escape: _MEMBERS[escape[1]], pattern))
                stack += part.values()
            case list() as parts:
                stack += parts
            case _:
                pass
    letters = "".join(found).encode("ascii", "ignore")
    letters = bytes(byte for byte in letters if byte >= 0x20 and byte not in b'"\\')
    # Letters and digits first: most of the rest is the syntax of patterns.
    return bytes(sorted(letters, key=lambda byte: not chr(byte).isalnum()))[:MAX_LIKELY]


def _find_ending(
    matcher: GrammarMatcher, tokens: ClosingTokens, place: TextPlace, likely: bytes
) -> tuple[int, ...] | None:
    """Tokens that complete the document from here; None: none were found. The matcher is left as it was."""
    text = _ending_text(matcher, tokens, place, b"")
    if text is None and likely:
        text = _ending_text(matcher, tokens, place, likely)
    if text is None:
        return None
    for spelled in (tokens.spell(text), [tokens.ids[text[i : i + 1]] for i in range(len(text))]):
        if _completes(matcher, spelled, tokens):
            return tuple(spelled)
    return None


def _ending_text(
    matcher: GrammarMatcher, tokens: ClosingTokens, place: TextPlace, likely: bytes
) -> bytes | None:
    """``likely``: see ClosingMatcher; empty: strings end by their order of choices alone."""
    text = bytearray()

    def take(byte: int) -> bool:
        nonlocal place
        token_id = tokens.ids.get(bytes((byte,)))
        if token_id is None or not matcher.accept(token_id):
            return False
        text.append(byte)
        place = place.after(bytes((byte,)))
        return True

    try:
        while not _is_complete(matcher, tokens):
            if len(text) >= MAX_ENDING_BYTES:
                return None
            forced = matcher.forced_bytes() if isinstance(matcher, ForcedText) else b""
            num_forced = len(text)
            for byte in forced[: MAX_ENDING_BYTES - len(text)]:
                if not take(byte):
                    break
            if len(text) > num_forced:
                continue
            if likely and place.in_string and not place.is_escaped:
                inside = _string_end(matcher, tokens, likely)
                if inside and all(map(take, inside)):
                    continue
            if not any(take(byte) for byte in place.choices()):
                return None
        return bytes(text)
    finally:
        matcher.rollback(len(text))


def _string_end(matcher: GrammarMatcher, tokens: ClosingTokens, likely: bytes) -> bytes:
    """The shortest text of ``likely`` bytes, and the quote, behind which the string that is open ends; empty:
    none was found. Breadth first; the matcher is left as it was."""
    quote = tokens.ids.get(b'"')
    letters = [(byte, tokens.ids[bytes((byte,))]) for byte in likely if bytes((byte,)) in tokens.ids]
    if quote is None:
        return b""
    queue: deque[tuple[bytes, tuple[int, ...]]] = deque([(b"", ())])
    num_left = MAX_ACCEPTS
    while queue and num_left > 0:
        text, ids = queue.popleft()
        num_left -= len(ids) + 1
        accepted = all(map(matcher.accept, ids))
        assert accepted, "what was accepted once is accepted again"
        ends = matcher.accept(quote)
        if ends:
            matcher.rollback(1)
        else:
            for byte, token_id in letters:
                if matcher.accept(token_id):
                    matcher.rollback(1)
                    queue.append((text + bytes((byte,)), (*ids, token_id)))
        matcher.rollback(len(ids))
        num_left -= len(letters)
        if ends:
            return text + b'"'
    return b""


def _completes(matcher: GrammarMatcher, token_ids: Sequence[int], tokens: ClosingTokens) -> bool:
    """Whether the document is complete behind these tokens. The matcher is left as it was."""
    num_accepted = 0
    try:
        for token_id in token_ids:
            if not matcher.accept(token_id):
                return False
            num_accepted += 1
        return _is_complete(matcher, tokens)
    finally:
        matcher.rollback(num_accepted)


def _is_complete(matcher: GrammarMatcher, tokens: ClosingTokens) -> bool:
    if not matcher.accept(tokens.stop_token_ids[0]):
        return False
    matcher.rollback(1)
    return True


def _behind(order: bytes, last: int) -> bytes:
    """The bytes in turn, from the one behind ``last`` on."""
    at = order.find(last) + 1
    return order[at:] + order[:at]


def _bit(token_id: int) -> int:
    """As a word of a bitmask, int32."""
    bit = 1 << (token_id % 32)
    return bit - (1 << 32) if bit >> 31 else bit
