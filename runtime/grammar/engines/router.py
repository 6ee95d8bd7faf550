"""EngineRouter: each constraint goes to the safest engine that enforces the whole of it, or to the one it
names."""

import threading
from collections.abc import Callable
from functools import lru_cache

import msgspec

from ramet.runtime.grammar.backend import Check, CompiledGrammar, GrammarMatcher, Vocabulary
from ramet.runtime.grammar.choice import ChoiceBackend
from ramet.runtime.grammar.engines.guidance import EngineLimitError, GuidanceBackend
from ramet.runtime.grammar.engines.heavy import (
    LIGHT_SECONDS,
    check_schemas,
    check_tag,
    is_heavy_grammar,
    is_heavy_tag,
)
from ramet.runtime.grammar.engines.lark_text import syntax_of
from ramet.runtime.grammar.engines.lazy import KINDS, PROBE_BUILDER
from ramet.runtime.grammar.engines.outlines import OutlinesBackend, outlines_pattern
from ramet.runtime.grammar.engines.recent import Recent
from ramet.runtime.grammar.engines.spellings import Spellings
from ramet.runtime.grammar.engines.structural import read_structural_tag
from ramet.runtime.grammar.engines.xgr import XgrammarBackend
from ramet.runtime.grammar.engines.xgr_subset import gbnf_of, xgrammar_of_structural_tag, xgrammar_pattern
from ramet.runtime.grammar.prefix import PrefixBackend
from ramet.runtime.grammar.schema import OverdueError, Pace, SchemaPlan, Validator, plan
from ramet.runtime.grammar.token_table import TokenTable
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    JsonSchema,
    Prefix,
    Regex,
    StructuralTag,
    UnsupportedConstraintError,
)

MAX_PLANS = 16
"""Plans of schemas and tags as read that are kept: whether one needs a probe is asked before it is compiled."""
MAX_TRIED = 4
"""Grammars that are kept between the question whether they need a probe and their compilation."""


class EngineRouter:
    """A GrammarBackend over llguidance, xgrammar, outlines-core and ramet's own choices. Thread-safe.

    ``auto`` tries the engines in the order of their safety: llguidance, which is bounded and refuses what it
    lacks, then xgrammar, where it is known to enforce the whole. Nothing of an engine is imported before a
    constraint needs it. Is a RiskyBackend too: what reaches xgrammar or outlines-core, and grammars that grow
    when they are written out, are to be tried in another process first; the latter stay with llguidance.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._choices = ChoiceBackend(vocabulary)
        self._spellings = Spellings(vocabulary, lambda: self._choices.tokens)
        self._prefixes = PrefixBackend(self, lambda: self._choices.tokens)
        self._plans = Recent(lambda schema, pace: plan(schema, pace=pace), MAX_PLANS)
        self._tags = Recent(read_structural_tag, MAX_PLANS)
        self._is_heavy_grammar = lru_cache(maxsize=MAX_PLANS)(is_heavy_grammar)
        self._guidance = GuidanceBackend(self._spellings)
        self._xgrammar = XgrammarBackend(self._spellings)
        self._outlines = OutlinesBackend(self._spellings)
        self._tried: dict[GrammarSpec, CompiledGrammar] = {}
        self._tried_lock = threading.Lock()

    @property
    def kinds(self) -> frozenset[str]:
        return KINDS

    @property
    def probe_builder(self) -> str:
        return PROBE_BUILDER

    @property
    def tokens(self) -> TokenTable:
        return self._choices.tokens

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Raises UnsupportedConstraintError: no engine, or not the one that is named, enforces the whole of
        it; for a schema that is not strict, of what is left of it when finished answers are validated."""
        try:
            return self._compile(spec)
        except EngineLimitError as error:
            raise _plain(error) from None

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """As ``compile``; raises EngineLimitError besides."""
        match spec:
            case JsonSchema():
                return self._schema(spec)
            case Regex():
                return self._regex(spec)
            case Choice():
                return self._choice(spec)
            case Ebnf():
                return self._ebnf(spec)
            case StructuralTag():
                return self._tag(spec)
            case Prefix():
                return self._prefixes.compile(spec)

    def load(self, spec: GrammarSpec) -> None:
        """See LoadsEngines."""
        if isinstance(spec, Prefix):
            if spec.inner is not None:
                self.load(spec.inner)
            return
        if spec.backend in ("auto", "llguidance"):
            self._guidance.load()
        if spec.backend == "xgrammar" or (spec.backend == "auto" and not self._is_known_heavy(spec)):
            self._xgrammar.load()
        if spec.backend == "outlines":
            self._outlines.load()

    def needs_probe(self, spec: GrammarSpec) -> bool:
        """Whether ``compile`` could hang, or take all memory, or end the process.

        Raises InvalidRequestError: the spec is malformed, or no engine enforces it.
        """
        try:
            return self._is_risky(spec, Pace(LIGHT_SECONDS))
        except OverdueError:
            # Planning is Python, and cannot be stopped from without.
            return True

    def _is_risky(self, spec: GrammarSpec, pace: Pace) -> bool:
        """As ``needs_probe``. Raises OverdueError."""
        match spec:
            case Prefix():
                return spec.inner is not None and self._is_risky(spec.inner, pace)
            case JsonSchema(backend="auto"):
                return self._plans.get(spec.schema, pace).safest_engine == "xgrammar"
            case JsonSchema(backend="llguidance" | "outlines"):
                self._plans.get(spec.schema, pace)
                return False
            case Ebnf(backend="auto" | "llguidance") | StructuralTag(backend="auto" | "llguidance") if (
                self._is_heavy(spec, pace)
            ):
                return True
            case Ebnf(backend="auto") | StructuralTag(backend="auto"):
                return self._is_left_to_xgrammar(spec)
            case _:
                return spec.backend in ("xgrammar", "outlines") and self._passes_checks(spec, pace)

    def _is_heavy(self, spec: GrammarSpec, pace: Pace | None = None) -> bool:
        """Raises InvalidRequestError: it is no structural tag; OverdueError."""
        match spec:
            case Ebnf():
                if pace is not None:
                    check_schemas(spec, pace)
                return self._is_heavy_grammar(spec)
            case StructuralTag():
                document = self._tags.get(spec.spec, pace)
                if pace is not None:
                    check_tag(document, pace)
                return is_heavy_tag(document)
            case _:
                return False

    def _is_known_heavy(self, spec: GrammarSpec) -> bool:
        """As ``_is_heavy``; False too where that would take long to see."""
        try:
            return self._is_heavy(spec, Pace(LIGHT_SECONDS))
        except OverdueError:
            return False

    def _passes_checks(self, spec: GrammarSpec, pace: Pace) -> bool:
        """False: ``compile`` refuses it without the engine that it names.

        Raises InvalidRequestError: as ``compile`` would, without the engine; OverdueError.
        """
        match spec:
            case JsonSchema(backend="xgrammar"):
                self._plans.get(spec.schema, pace).choose("xgrammar", strict=spec.strict)
            case Regex(backend="xgrammar"):
                xgrammar_pattern(spec.pattern)
            case Ebnf(backend="xgrammar") | StructuralTag(backend="xgrammar"):
                self._is_heavy(spec, pace)
                self._written_for_xgrammar(spec)
            case Regex(backend="outlines") | Choice(backend="outlines"):
                outlines_pattern(spec)
            case _:
                return isinstance(spec, Choice)
        return True

    def _schema(self, spec: JsonSchema) -> CompiledGrammar:
        planned = self._plans.get(spec.schema)
        engine = planned.choose(None if spec.backend == "auto" else spec.backend, strict=spec.strict)
        compiled = self._schema_by(engine, planned, spec)
        if not planned.must_validate:
            return compiled
        return WeakerSchema(compiled, Validator(spec.schema))

    def _schema_by(self, engine: str, planned: SchemaPlan, spec: JsonSchema) -> CompiledGrammar:
        match engine:
            case "llguidance":
                return self._guidance.compile_schema(planned, spec.max_whitespace)
            case "xgrammar":
                return self._xgrammar.compile_schema(planned, spec.max_whitespace)
            case _:
                raise _cannot(engine, "JSON schemas: it lets invalid JSON through")

    def _regex(self, spec: Regex) -> CompiledGrammar:
        match spec.backend:
            case "xgrammar":
                return self._xgrammar.compile_regex(spec)
            case "outlines":
                return self._outlines.compile_regex(spec)
            case _:
                return self._guidance.compile_regex(spec)

    def _choice(self, spec: Choice) -> CompiledGrammar:
        match spec.backend:
            case "llguidance":
                return self._guidance.compile_choice(spec)
            case "xgrammar":
                return self._xgrammar.compile_choice(spec)
            case "outlines":
                return self._outlines.compile_choice(spec)
            case _:
                return self._choices.compile(spec)

    def _ebnf(self, spec: Ebnf) -> CompiledGrammar:
        match spec.backend:
            case "llguidance":
                return self._guidance.compile_ebnf(spec)
            case "xgrammar":
                return self._xgrammar.compile_ebnf(spec)
            case "outlines":
                raise _cannot("outlines", "context-free grammars")
            case _ if self._is_heavy(spec):
                return self._guidance.compile_ebnf(spec)
            case _:
                return self._take_tried(spec) or self._first_of(
                    spec, lambda: self._guidance.compile_ebnf(spec), lambda: self._xgrammar.compile_ebnf(spec)
                )

    def _tag(self, spec: StructuralTag) -> CompiledGrammar:
        document, bound = self._tags.get(spec.spec), spec.max_whitespace
        match spec.backend:
            case "llguidance":
                return self._guidance.compile_tag(document, bound)
            case "xgrammar":
                return self._xgrammar.compile_tag(document, bound)
            case "outlines":
                raise _cannot("outlines", "structural tags")
            case _ if is_heavy_tag(document):
                return self._guidance.compile_tag(document, bound)
            case _:
                return self._take_tried(spec) or self._first_of(
                    spec,
                    lambda: self._guidance.compile_tag(document, bound),
                    lambda: self._xgrammar.compile_tag(document, bound),
                )

    def _is_left_to_xgrammar(self, spec: Ebnf | StructuralTag) -> bool:
        """Whether llguidance refuses it, and xgrammar may not. What llguidance made of it is kept for
        ``compile``, which comes next."""
        try:
            compiled = self._compile(msgspec.structs.replace(spec, backend="llguidance"))
        except EngineLimitError as error:
            # Another engine would not be bounded in what it does about it.
            raise _plain(error) from None
        except UnsupportedConstraintError:
            return self._is_for_xgrammar(spec)
        with self._tried_lock:
            self._tried[spec] = compiled
            while len(self._tried) > MAX_TRIED:
                del self._tried[next(iter(self._tried))]
        return False

    def _first_of(
        self,
        spec: Ebnf | StructuralTag,
        by_guidance: Callable[[], CompiledGrammar],
        by_xgrammar: Callable[[], CompiledGrammar],
    ) -> CompiledGrammar:
        """What llguidance makes of it, or xgrammar where it does not take it.

        Raises UnsupportedConstraintError: neither does; says why.
        """
        try:
            return by_guidance()
        except EngineLimitError:
            raise
        except UnsupportedConstraintError as error:
            refusal = error
        try:
            self._written_for_xgrammar(spec)
            return by_xgrammar()
        except UnsupportedConstraintError as error:
            said = str(error)
        if said == str(refusal) or (isinstance(spec, Ebnf) and syntax_of(spec) == "lark"):
            raise refusal
        raise UnsupportedConstraintError(f"{refusal}; and {said}", field="grammar")

    def _is_for_xgrammar(self, spec: Ebnf | StructuralTag) -> bool:
        """Whether it is worth asking: not for what is seen beforehand to be beyond it."""
        try:
            self._written_for_xgrammar(spec)
        except UnsupportedConstraintError:
            return False
        return True

    def _written_for_xgrammar(self, spec: Ebnf | StructuralTag) -> None:
        """Raises UnsupportedConstraintError: it cannot be."""
        if isinstance(spec, Ebnf):
            gbnf_of(spec)
        else:
            document = self._tags.get(spec.spec)
            xgrammar_of_structural_tag(document, self._spellings, spec.max_whitespace)

    def _take_tried(self, spec: GrammarSpec) -> CompiledGrammar | None:
        with self._tried_lock:
            return self._tried.pop(spec, None)


class WeakerSchema:
    """A PartialGrammar: enforces what can be of a schema, and validates the rest in finished answers."""

    def __init__(self, compiled: CompiledGrammar, validator: Validator) -> None:
        self._compiled = compiled
        self._validator = validator

    @property
    def check(self) -> Check:
        return self._validator.problems

    def matcher(self) -> GrammarMatcher:
        return self._compiled.matcher()


def _plain(error: EngineLimitError) -> UnsupportedConstraintError:
    """As callers know it, whichever process they are in."""
    return UnsupportedConstraintError(str(error), field=error.field)


def _cannot(engine: str, what: str) -> UnsupportedConstraintError:
    return UnsupportedConstraintError(
        f"{engine} does not enforce {what}; use auto or llguidance", field="grammar"
    )
