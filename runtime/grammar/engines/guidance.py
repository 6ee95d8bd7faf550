"""GuidanceBackend: grammars enforced by llguidance.

llguidance lexes greedily and parses with Earley's algorithm; it bounds its work by fuel and never hangs, and
what it cannot enforce it says when it compiles. Its options are given whole in every place where a caller could
set them too.
"""

import re
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from ramet.runtime.grammar.engines.full_pattern import full_pattern, literal_pattern
from ramet.runtime.grammar.engines.guarded import GuardedMatcher
from ramet.runtime.grammar.engines.lark_text import (
    HEADER,
    check_literals,
    lark_json,
    lark_of_ebnf,
    lark_regex,
    syntax_of,
)
from ramet.runtime.grammar.engines.refused_part import refused_part
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
TRIED_STEPS = 6
"""Masks that are computed before a grammar counts as compiled. One takes some 20 microseconds."""
_QUOTED_SOURCE = re.compile(r"<state>|<non-verbose/>|\n\s*\d+ \| ")
"""Where a message goes on with the parser's state or the grammar's lines."""
_LIMIT = re.compile(
    r"too (?:many (?!digits)|complex|large|big)|\bmax is \d|\blimit|fuel|^(?:\w+ error: )?lexer error:",
    re.IGNORECASE,
)
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
"""Line and column."""
_UNDECIDED = re.compile(r"Unable to determine if regex is empty.*", re.DOTALL)
_NAME = "the grammar"
SMALLER = (
    "make it smaller: fewer repetitions, above all of what is repeated or optional itself, and shorter texts"
)
SLICES = (
    "[ \\n\\r\\t]+",
    ' [^"\\\\\\x00-\\x1F\\x7F]{0,29}',
    '[^"\\\\\\x00-\\x1F\\x7F]{1,10}',
    '[^"\\\\\\x00-\\x1F\\x7F]{1,30}',
    '[^"\\\\\\x00-\\x1F\\x7F]+',
)
"""Sets of tokens that are allowed or not as a whole where a string goes on: llguidance's own, and words with
a space before them, with which names of properties seldom begin. Saves a seventh of the time of masks."""
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

    def load(self) -> None:
        """Imports llguidance, and reads the vocabulary into it. Raises InvalidRequestError: not installed."""
        _matcher_type()
        _ = self._tokenizer

    def compile_schema(self, plan: SchemaPlan, max_whitespace: int) -> "CompiledGuidance":
        """``plan`` is one whose text llguidance enforces whole."""
        try:
            return self._compile_plan(plan, max_whitespace)
        except UnsupportedConstraintError as error:
            at = refused_part(plan.source, lambda part: self._is_refused(part, max_whitespace))
            raise type(error)(f"the schema cannot be enforced at #{at}: {error}", field=error.field) from None

    def _compile_plan(self, plan: SchemaPlan, max_whitespace: int) -> "CompiledGuidance":
        schema = lark_json(plan, schema_policy(max_whitespace), strict=False)
        return self.compile_lark(f"{HEADER}start: {schema}\n", _SCHEMA)

    def _is_refused(self, plan: SchemaPlan, max_whitespace: int) -> bool:
        try:
            self._compile_plan(plan, max_whitespace)
        except UnsupportedConstraintError:
            return True
        return False

    def compile_regex(self, spec: Regex) -> "CompiledGuidance":
        source = Source(f"the regular expression {spec.pattern[:80]!r}", "correct or simplify it")
        return self._compile_pattern(full_pattern(spec.pattern).text, source)

    def compile_choice(self, spec: Choice) -> "CompiledGuidance":
        check_literals(spec.options)
        # One regular expression: as many alternatives of a rule would exceed the limit of a parser's row.
        source = Source("the choice", "give fewer options, or use the backend auto")
        return self._compile_pattern("|".join(map(literal_pattern, spec.options)), source)

    def compile_ebnf(self, spec: Ebnf) -> "CompiledGuidance":
        policy = schema_policy(EBNF_WHITESPACE)
        # Positions in what GBNF was made into say nothing to its author.
        source = msgspec.structs.replace(_GRAMMAR, num_lines=0 if syntax_of(spec) == "gbnf" else 1)
        return self.compile_lark(lark_of_ebnf(spec, self._spellings, policy), source)

    def compile_tag(self, document: StructuralDocument, max_whitespace: int) -> "CompiledGuidance":
        policy = schema_policy(max_whitespace)
        lark = lark_of_structural_tag(document, self._spellings, policy)
        source = Source(
            "the structural tag", "simplify its formats", bounds_forced_text=not document.has_grammars
        )
        return self.compile_lark(lark, source)

    def compile_lark(self, grammar: str, source: "Source | None" = None) -> "CompiledGuidance":
        """A grammar in llguidance's own Lark, taken as it is.

        Raises:
            UnsupportedConstraintError: llguidance refuses it, or nothing matches it.
            EngineLimitError: it takes too much.
        """
        from llguidance import LLParserLimits

        source = source or _GRAMMAR
        limits = LLParserLimits(verbose_errors=False)
        matcher = _matcher_type()(self._tokenizer, grammar, log_level=0, limits=limits)
        forced = _Forced.BY_MASKS
        if source.bounds_forced_text:
            # A control token by its id, in a grammar that the caller's own was made into.
            forced = _Forced.BY_COPY if "<[" in grammar else _Forced.BY_ENGINE
        compiled = CompiledGuidance(matcher, self._spellings, forced)
        try:
            self._try_out(compiled.matcher())
        except LimitReachedError as error:
            raise EngineLimitError(source.told(error), field="grammar") from None
        except RequestFailedError as error:
            raise UnsupportedConstraintError(
                f"{source.name} cannot be enforced by llguidance: {source.told(error)}; {source.remedy}",
                field="grammar",
            ) from None
        return compiled

    def _try_out(self, matcher: GuardedMatcher) -> None:
        """Some limits are met, and some contradictions found, only when masks and forced text are computed. So
        both are, along one walk by the longest tokens, as a request would. Raises RequestFailedError: already
        the first or second mask cannot be computed, or a later one takes more than llguidance's limits.
        """
        row = np.zeros(self._spellings.num_words, dtype=np.int32)
        for step in range(TRIED_STEPS):
            try:
                matcher.forced_bytes()
                matcher.fill_bitmask(row)
            except LimitReachedError:
                raise
            except RequestFailedError:
                if step > 1:
                    # A dead end of this path, which no request may take.
                    return
                raise
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if not len(allowed):
                return
            # The lowest first: it is a single byte in most vocabularies, so all of what must follow is seen.
            token_id = int(allowed[0] if not step else allowed[np.argmax(self._lengths[allowed])])
            if not matcher.accept(token_id) or matcher.is_terminated():
                return

    @cached_property
    def _lengths(self) -> npt.NDArray[np.int32]:
        """Of each token, in bytes; padded to whole words of a mask."""
        lengths = np.zeros(32 * self._spellings.num_words, dtype=np.int32)
        lengths[: len(self._spellings.plain)] = [len(text) for text in self._spellings.plain]
        return lengths

    def _compile_pattern(self, pattern: str, source: "Source") -> "CompiledGuidance":
        return self.compile_lark(f"{HEADER}start: {lark_regex(pattern)}\n", source)

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        return LLTokenizer(
            _TokenList(self._spellings),  # type: ignore[arg-type]
            n_vocab=self._spellings.vocab_size,
            eos_token=list(self._spellings.stop_token_ids),
            slices=list(SLICES),
        )


class Source(msgspec.Struct, frozen=True):
    """What a grammar in Lark was made of, and how a refusal speaks of it."""

    name: str
    remedy: str
    bounds_forced_text: bool = True
    """No lexeme can take what the next one needs: llguidance may be asked for the text that must come."""
    num_lines: int = 0
    """Before the first of the caller's; 0: positions in it say nothing to the caller."""

    def told(self, error: RequestFailedError) -> str:
        """llguidance's message, of this grammar, with positions as the caller counts them."""
        text = _PLACE.sub(self._place, str(error).replace(_NAME, self.name, 1).rstrip(". "), count=1)
        text = text.replace("failed to compile JSON schema: ", "", 1)
        return _UNDECIDED.sub(
            "whether a text meets its patterns and lengths at once takes too long to see", text
        )

    def _place(self, place: "re.Match[str]") -> str:
        if not self.num_lines:
            return ""
        return f"line {max(1, int(place.group(1)) - self.num_lines)}, column {place.group(2)}: "


_SCHEMA = Source("it", "simplify the schema there")
_GRAMMAR = Source("the grammar", "correct or simplify it", bounds_forced_text=False)


class LimitReachedError(RequestFailedError):
    """llguidance gave up: the grammar takes more work, memory or rows than its limits allow."""


class EngineLimitError(UnsupportedConstraintError):
    """The same, when the grammar is compiled. Engines without such limits would take long, or for ever."""


class _Forced(Enum):
    """How the text that must come is found."""

    BY_ENGINE = auto()
    BY_COPY = auto()
    """By the engine's copy: where a control token is forced, llguidance finds no token any more once it was
    asked."""
    BY_MASKS = auto()
    """The engine might never answer, nor let another thread run."""


class CompiledGuidance:
    """A matcher at the grammar's start, of which each request gets a copy."""

    def __init__(self, start: "LLMatcher", spellings: Spellings, forced: _Forced = _Forced.BY_ENGINE) -> None:
        self._start = start
        self._spellings = spellings
        self._forced = forced

    def matcher(self) -> GuardedMatcher:
        return GuardedMatcher(GuidanceState(self._start.deep_copy(), self._forced), self._spellings)


class GuidanceState:
    """An EngineState. llguidance raises nothing: after an error its matcher stays in it, so it is asked."""

    def __init__(self, matcher: "LLMatcher", forced: _Forced = _Forced.BY_ENGINE) -> None:
        self._matcher = matcher
        self._forced = forced

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

    def forced_bytes(self) -> bytes | None:
        if self._forced is _Forced.BY_MASKS:
            return None
        asked = self.copy() if self._forced is _Forced.BY_COPY else self
        forced = asked._matcher.compute_ff_bytes()
        asked._check()
        # Behind the mark stands a control token, which is no text.
        return forced.partition(Spellings.MARK)[0]

    def copy(self) -> "GuidanceState":
        return GuidanceState(self._matcher.deep_copy(), self._forced)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise self._error()

    def _error(self) -> RequestFailedError:
        message = _QUOTED_SOURCE.split(self._matcher.get_error(), maxsplit=1)[0]
        if message.startswith("NoExtension"):
            return RequestFailedError("nothing that this model can write matches it")
        text = " ".join(message.split())[:MAX_ERROR_CHARS]
        if _LIMIT.search(text) is None:
            return RequestFailedError(text)
        return LimitReachedError(
            f"{_NAME} takes more than llguidance's limits allow ({text.rstrip('. ')}); {SMALLER}"
        )


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
