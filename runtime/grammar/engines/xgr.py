"""XgrammarBackend: grammars enforced by xgrammar.

xgrammar takes much without a word that it does not enforce, so nothing reaches it that was not seen to be
whole: schemas by their plan, patterns and structural tags by what is checked here. Control tokens are spelled
with a byte that no text has, or it would allow them inside of strings. Compiling and masking can hang and,
rarely, kill the process: the router says which specs have to be tried in another process first.
"""

import json
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.escapes import SurrogateGuard, SurrogateTokens
from ramet.runtime.grammar.engines.full_pattern import literal_pattern
from ramet.runtime.grammar.engines.guarded import EngineState, GuardedMatcher
from ramet.runtime.grammar.engines.lark_text import schema_object
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import StructuralDocument
from ramet.runtime.grammar.engines.xgr_subset import gbnf_of, xgrammar_of_structural_tag, xgrammar_pattern
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
    from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher

MAX_THREADS = 2


class XgrammarBackend:
    """Compiles with xgrammar what the router gives it. Thread-safe."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._surrogates = SurrogateTokens(spellings)

    def load(self) -> None:
        """Imports xgrammar, and reads the vocabulary into it. Raises InvalidRequestError: not installed."""
        _ = self._compiler

    def compile_schema(self, plan: SchemaPlan, max_whitespace: int) -> "CompiledXgrammar":
        """``plan`` is one whose text xgrammar enforces whole."""
        compiler, schema = self._compiler, json.dumps(schema_object(plan), ensure_ascii=False)
        if max_whitespace:
            return self._compiled(
                lambda: compiler.compile_json_schema(
                    schema, any_whitespace=True, strict_mode=False, max_whitespace_cnt=max_whitespace
                ),
                has_json=True,
            )
        return self._compiled(
            lambda: compiler.compile_json_schema(
                schema, any_whitespace=False, separators=(",", ":"), strict_mode=False
            ),
            has_json=True,
        )

    def compile_regex(self, spec: Regex) -> "CompiledXgrammar":
        pattern = xgrammar_pattern(spec.pattern).text
        return self._compiled(lambda: self._compiler.compile_regex(pattern))

    def compile_choice(self, spec: Choice) -> "CompiledXgrammar":
        pattern = "|".join(map(literal_pattern, spec.options))
        return self._compiled(lambda: self._compiler.compile_regex(pattern))

    def compile_ebnf(self, spec: Ebnf) -> "CompiledXgrammar":
        grammar = gbnf_of(spec)
        return self._compiled(lambda: self._compiler.compile_grammar(grammar))

    def compile_tag(self, document: StructuralDocument, max_whitespace: int) -> "CompiledXgrammar":
        tag = json.dumps(xgrammar_of_structural_tag(document, self._spellings, max_whitespace))
        has_json = bool(document.plans)
        return self._compiled(lambda: self._compiler.compile_structural_tag(tag), has_json=has_json)

    def _compiled(
        self, compile_it: "Callable[[], CompiledGrammar]", *, has_json: bool = False
    ) -> "CompiledXgrammar":
        """Raises UnsupportedConstraintError: xgrammar refuses it, or nothing matches it."""
        try:
            compiled = CompiledXgrammar(compile_it(), self._spellings, self._surrogates if has_json else None)
            compiled.matcher().fill_bitmask(np.zeros(self._spellings.num_words, dtype=np.int32))
        except (RuntimeError, ValueError, RequestFailedError) as error:
            raise UnsupportedConstraintError(
                f"the constraint cannot be enforced by xgrammar: {_message(error)}; correct or simplify it",
                field="grammar",
            ) from None
        return compiled

    @cached_property
    def _compiler(self) -> "GrammarCompiler":
        try:
            from xgrammar import GrammarCompiler, TokenizerInfo, VocabType
        except ImportError as error:
            raise InvalidRequestError(
                "backend xgrammar is not installed: pip install xgrammar==0.2.9", field="grammar"
            ) from error
        spellings = self._spellings
        encoded = list(spellings.plain)
        for token_id, name in spellings.control_tokens.items():
            encoded[token_id] = Spellings.MARK + name.encode()
        tokens = TokenizerInfo(
            encoded,
            VocabType.RAW,
            vocab_size=spellings.vocab_size,
            stop_token_ids=list(spellings.stop_token_ids),
        )
        # Compiled grammars are kept by the runtime's own cache, which is bounded.
        return GrammarCompiler(tokens, max_threads=MAX_THREADS, cache_enabled=False)


class CompiledXgrammar:
    """What xgrammar made of a grammar."""

    def __init__(
        self, compiled: "CompiledGrammar", spellings: Spellings, surrogates: SurrogateTokens | None
    ) -> None:
        """``surrogates``: given where there is JSON in it."""
        self._compiled = compiled
        self._spellings = spellings
        self._surrogates = surrogates

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def matcher(self) -> GuardedMatcher:
        from xgrammar import GrammarMatcher

        state: EngineState = XgrammarState(GrammarMatcher(self._compiled), self._spellings)
        if self._surrogates is not None:
            state = SurrogateGuard(state, self._surrogates)
        return GuardedMatcher(state, self._spellings)


class XgrammarState:
    """An EngineState. Stop tokens never get here, so the matcher never terminates, and a fill is never too
    late.

    Its mask may forbid a token that it would accept (a recursive ``$ref`` to the root): what is sampled follows
    the mask, which is the narrower of the two.
    """

    def __init__(self, matcher: "GrammarMatcher", spellings: Spellings) -> None:
        self._matcher = matcher
        self._spellings = spellings

    def consume(self, token_id: int) -> bool:
        try:
            return bool(self._matcher.accept_token(token_id))
        except RuntimeError as error:
            raise RequestFailedError(f"xgrammar failed: {_message(error)}") from None

    def can_stop(self) -> bool:
        return bool(self._matcher.is_completed())

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        try:
            is_narrower = self._matcher.fill_next_token_bitmask(row)
        except RuntimeError as error:
            raise RequestFailedError(f"xgrammar failed: {_message(error)}") from None
        if not is_narrower:
            row.fill(-1)
        spare = 32 * len(row) - self._spellings.vocab_size
        if spare:
            row[-1] &= np.int32((1 << (32 - spare)) - 1)

    def undo(self, num_tokens: int) -> None:
        try:
            self._matcher.rollback(num_tokens)
        except RuntimeError as error:
            raise RequestFailedError(f"xgrammar cannot roll back: {_message(error)}") from None

    def forced_bytes(self) -> None:
        # xgrammar would write the whole of it, of any length.
        return None

    def copy(self) -> "XgrammarState":
        return XgrammarState(self._matcher.fork(), self._spellings)


def _message(error: Exception) -> str:
    """The library's message without the time and the place in its source."""
    text = str(error).rpartition(".cc:")[2].partition(": ")[2] or str(error)
    return " ".join(text.split()).rstrip(".")[:300]
