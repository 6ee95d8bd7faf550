"""GuidanceBackend: grammars enforced by llguidance.

llguidance lexes greedily and parses with Earley's algorithm; it bounds its work by fuel and never hangs, and
what it cannot enforce it says when it compiles. Its options are given whole in every place where a caller could
set them too.
"""

import re
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.full_pattern import full_pattern, literal_pattern
from ramet.runtime.grammar.engines.guarded import GuardedMatcher
from ramet.runtime.grammar.engines.lark_text import HEADER, lark_json, lark_of_ebnf, lark_regex
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import StructuralDocument
from ramet.runtime.grammar.engines.tag_lark import lark_of_structural_tag
from ramet.runtime.grammar.schema import SchemaPlan
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    InvalidRequestError,
    Regex,
    RequestFailedError,
    UnsupportedConstraintError,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_ERROR_CHARS = 300
_QUOTED_SOURCE = re.compile(r"<state>|\n\s*\d+ \| ")
"""Where a message goes on with the parser's state or the grammar's lines."""
EBNF_WHITESPACE = 8
"""Bound of the whitespace in a JSON schema inside of a grammar, which has no field for it."""


def schema_policy(max_whitespace: int) -> dict[str, object]:
    """llguidance's options for JSON schemas. Each is given, so that ``x-guidance`` in a schema has no say."""
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": max_whitespace > 0,
        "whitespace_pattern": f"[ \\t\\n\\r]{{1,{max_whitespace}}}" if max_whitespace else None,
        "coerce_one_of": False,
        "lenient": False,
        # Without it no character may be escaped by its number; half of a surrogate pair never is.
        "json_allow_general_unicode_escapes": True,
    }


class GuidanceBackend:
    """Compiles with llguidance what the router gives it. Thread-safe."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings

    def compile_schema(self, plan: SchemaPlan, max_whitespace: int) -> "CompiledGuidance":
        """``plan`` is one whose text llguidance enforces whole."""
        schema = lark_json(plan, schema_policy(max_whitespace), strict=False)
        return self.compile_lark(f"{HEADER}start: {schema}\n")

    def compile_regex(self, spec: Regex) -> "CompiledGuidance":
        return self._compile_pattern(full_pattern(spec.pattern).text)

    def compile_choice(self, spec: Choice) -> "CompiledGuidance":
        # One regular expression: as many alternatives of a rule would exceed the limit of a parser's row.
        return self._compile_pattern("|".join(map(literal_pattern, spec.options)))

    def compile_ebnf(self, spec: Ebnf) -> "CompiledGuidance":
        policy = schema_policy(EBNF_WHITESPACE)
        return self.compile_lark(lark_of_ebnf(spec, self._spellings, policy))

    def compile_tag(self, document: StructuralDocument, max_whitespace: int) -> "CompiledGuidance":
        policy = schema_policy(max_whitespace)
        return self.compile_lark(lark_of_structural_tag(document, self._spellings, policy))

    def compile_lark(self, grammar: str) -> "CompiledGuidance":
        """A grammar in llguidance's own Lark, taken as it is.

        Raises:
            UnsupportedConstraintError: llguidance refuses it, or nothing matches it.
        """
        from llguidance import LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = _matcher_type()(self._tokenizer, grammar, log_level=0, limits=limits)
        compiled = CompiledGuidance(matcher, self._spellings)
        try:
            self._try_out(compiled.matcher())
        except RequestFailedError as error:
            raise UnsupportedConstraintError(
                f"the constraint cannot be enforced by llguidance: {error}", field="grammar"
            ) from None
        return compiled

    def _try_out(self, matcher: GuardedMatcher) -> None:
        """Some limits are met, and some contradictions found, only when a mask is computed: the first, or the
        one behind the first token. Raises RequestFailedError.
        """
        row = np.zeros(self._spellings.num_words, dtype=np.int32)
        matcher.fill_bitmask(row)
        (words,) = np.nonzero(row)
        bits = int(row[words[0]]) & 0xFFFFFFFF
        token_id = int(words[0]) * 32 + (bits & -bits).bit_length() - 1
        if matcher.accept(token_id) and not matcher.is_terminated():
            matcher.fill_bitmask(row)

    def _compile_pattern(self, pattern: str) -> "CompiledGuidance":
        return self.compile_lark(f"{HEADER}start: {lark_regex(pattern)}\n")

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        return LLTokenizer(
            _TokenList(self._spellings),  # type: ignore[arg-type]
            n_vocab=self._spellings.vocab_size,
            eos_token=list(self._spellings.stop_token_ids),
        )


class CompiledGuidance:
    """A matcher at the grammar's start, of which each request gets a copy."""

    def __init__(self, start: "LLMatcher", spellings: Spellings) -> None:
        self._start = start
        self._spellings = spellings

    def matcher(self) -> GuardedMatcher:
        return GuardedMatcher(GuidanceState(self._start.deep_copy()), self._spellings)


class GuidanceState:
    """An EngineState. llguidance raises nothing: after an error its matcher stays in it, so it is asked."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher

    def consume(self, token_id: int) -> bool:
        if self._matcher.is_stopped():
            self._check()
            return False
        consumed = self._matcher.try_consume_tokens([token_id])
        self._check()
        return consumed == 1

    def can_stop(self) -> bool:
        return self._matcher.is_accepting()

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        self._check()
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()

    def undo(self, num_tokens: int) -> None:
        if not self._matcher.rollback(num_tokens):
            raise RequestFailedError(f"llguidance cannot roll back: {self._error()}")

    def forced_bytes(self) -> bytes:
        forced = self._matcher.compute_ff_bytes()
        self._check()
        # Behind the mark stands a control token, which is no text.
        return forced.partition(Spellings.MARK)[0]

    def copy(self) -> "GuidanceState":
        return GuidanceState(self._matcher.deep_copy())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestFailedError(self._error())

    def _error(self) -> str:
        message = _QUOTED_SOURCE.split(self._matcher.get_error(), maxsplit=1)[0]
        if message.startswith("NoExtension"):
            return "nothing that this model can write matches it"
        return " ".join(message.split())[:MAX_ERROR_CHARS]


class _TokenList:
    """The tokens in the form in which LLTokenizer reads them."""

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(self, spellings: Spellings) -> None:
        self._tokens = spellings.tokens
        self.eos_token_id = spellings.stop_token_ids[0]
        self.tokens = list(spellings.plain)
        for token_id, name in spellings.control_tokens.items():
            self.tokens[token_id] = name.encode()
        self.special_token_ids = list(spellings.control_tokens)

    def __call__(self, text: str | bytes) -> list[int]:
        """The longest token at each place. llguidance asks for it only to propose tokens, which is not used."""
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        while at < len(data):
            for length in range(self._tokens.max_length, 0, -1):
                found = self._tokens.ids_spelling(data[at : at + length])
                if found:
                    ids.append(found[0])
                    at += length
                    break
            else:
                at += 1
        return ids


def _matcher_type() -> "type[LLMatcher]":
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise InvalidRequestError(
            "this constraint needs llguidance: pip install 'llguidance>=1.9,<2'", field="grammar"
        ) from error
    return LLMatcher
