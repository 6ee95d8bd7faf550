"""Each constraint goes to the safest engine that enforces it whole, or to the one it names, or is refused."""

import json
import subprocess
import sys
from importlib import import_module

import pytest

from ramet.runtime.grammar import CompiledGrammar
from ramet.runtime.grammar.backend import GrammarBackend, check_of
from ramet.runtime.grammar.choice import CompiledChoice
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.engines.guidance import CompiledGuidance, GuidanceBackend, Source
from ramet.runtime.grammar.engines.outlines import CompiledOutlines
from ramet.runtime.grammar.engines.xgr import CompiledXgrammar, XgrammarBackend
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    Regex,
    StructuralTag,
    UnsupportedConstraintError,
)
from tests.runtime.grammar.engines.walking import TINY, tiny_takes

TEXT_THEN_NUMBER = json.dumps(
    {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "json_schema", "json_schema": True}]}
)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (JsonSchema("true"), CompiledGuidance),
        (JsonSchema("{}", "xgrammar"), CompiledXgrammar),
        (Regex("a"), CompiledGuidance),
        (Regex("a", "xgrammar"), CompiledXgrammar),
        (Regex("a", "outlines"), CompiledOutlines),
        (Choice(("a", "b")), CompiledChoice),
        (Choice(("a", "b"), "llguidance"), CompiledGuidance),
        (Choice(("a", "b"), "xgrammar"), CompiledXgrammar),
        (Choice(("a", "b"), "outlines"), CompiledOutlines),
        (Ebnf('root ::= "a"'), CompiledGuidance),
        (Ebnf('root ::= "a"', backend="xgrammar"), CompiledXgrammar),
        (StructuralTag('{"type": "const_string", "value": "a"}'), CompiledGuidance),
        (StructuralTag('{"type": "const_string", "value": "a"}', "xgrammar"), CompiledXgrammar),
        (StructuralTag(TEXT_THEN_NUMBER), CompiledXgrammar),
    ],
)
def test_who_enforces_what(tiny_router: EngineRouter, spec: GrammarSpec, kind: type[CompiledGrammar]) -> None:
    compiled = tiny_router.compile(spec)
    assert type(compiled) is kind
    assert tiny_router.needs_probe(spec) == (kind in (CompiledXgrammar, CompiledOutlines))
    assert str(type(spec).__struct_config__.tag) in tiny_router.kinds


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (JsonSchema("{}", "outlines"), "outlines"),
        (Ebnf('root ::= "a"', backend="outlines"), "outlines does not enforce context-free"),
        (StructuralTag('{"type": "any_text"}', "outlines"), "outlines does not enforce structural"),
        (StructuralTag(TEXT_THEN_NUMBER, "llguidance"), "cannot be told from what follows"),
        (StructuralTag(TEXT_THEN_NUMBER, max_whitespace=0), "cannot be told .*; and max_whitespace is 0"),
        (Ebnf("start: nobody"), 'llguidance: line 1, column 8: unknown name: "nobody"; correct'),
    ],
)
def test_an_engine_that_does_not_enforce_it_is_refused(
    tiny_router: EngineRouter, spec: GrammarSpec, problem: str
) -> None:
    with pytest.raises(UnsupportedConstraintError, match=problem) as caught:
        tiny_router.compile(spec)
    assert caught.value.field in ("grammar", "backend")


@pytest.mark.parametrize("spec", [JsonSchema("{"), JsonSchema("[]"), StructuralTag("[]"), Ebnf("")])
def test_what_is_malformed_is_refused(tiny_router: EngineRouter, spec: GrammarSpec) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tiny_router.compile(spec)
    assert caught.value.field == "grammar"


def test_behind_a_prefix(tiny_router: EngineRouter) -> None:
    ok = tiny_takes(tiny_router.compile(Prefix('{"', JsonSchema('{"type": "object"}', "llguidance"))))
    assert not ok('{"a": 1}')
    assert ok('{"{"a": 1}')
    assert tiny_router.needs_probe(Prefix("a", Regex("a", "xgrammar")))
    assert not tiny_router.needs_probe(Prefix("a"))


def test_another_process_builds_its_own() -> None:
    module, _, name = EngineRouter(TINY).probe_builder.partition(":")
    backend: GrammarBackend = getattr(import_module(module), name)(TINY)
    assert tiny_takes(backend.compile(Regex("a+")))("aaa")


def test_no_engine_is_imported_before_it_is_needed() -> None:
    code = (
        "from ramet.runtime.grammar.engines import EngineRouter\n"
        "from ramet.runtime.protocol import Choice\n"
        "from tests.runtime.grammar.engines.walking import TINY\n"
        "EngineRouter(TINY).compile(Choice(('a',)))\n"
        "import sys\n"
        "heavy = ('torch', 'llguidance', 'xgrammar', 'outlines_core', 'transformers')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


UNIQUE = json.dumps({"type": "array", "items": {"type": "integer"}, "maxItems": 30, "uniqueItems": True})


def test_what_cannot_be_enforced_is_validated_where_the_schema_is_not_strict(tiny_router: EngineRouter) -> None:
    with pytest.raises(UnsupportedConstraintError, match="#/uniqueItems"):
        tiny_router.compile(JsonSchema(UNIQUE))
    for backend in ("auto", "llguidance"):
        compiled = tiny_router.compile(JsonSchema(UNIQUE, backend, strict=False))
        check = check_of(compiled)
        assert check is not None
        takes = tiny_takes(compiled)
        assert (takes("[1,2]"), takes("[1,1]"), takes('["a"]'), takes("{}")) == (True, True, False, False)
        assert check("[1,2]") == []
        assert "non-unique" in check("[1,1]")[0]
    behind = check_of(tiny_router.compile(Prefix("a ", JsonSchema(UNIQUE, strict=False))))
    assert behind is not None
    assert behind("[1,1]")


def test_a_schema_that_is_enforced_whole_is_not_validated(tiny_router: EngineRouter) -> None:
    assert check_of(tiny_router.compile(JsonSchema('{"type": "integer"}', strict=False))) is None
    assert check_of(tiny_router.compile(Prefix("a ", JsonSchema("{}", strict=False)))) is None
    assert check_of(tiny_router.compile(Prefix("a"))) is None
    assert check_of(tiny_router.compile(Choice(("a",)))) is None


def test_a_pattern_that_can_neither_be_enforced_nor_checked_is_refused(tiny_router: EngineRouter) -> None:
    spec = JsonSchema(json.dumps({"type": "string", "pattern": r"(a)\1"}), strict=False)
    with pytest.raises(UnsupportedConstraintError, match="pattern"):
        tiny_router.compile(spec)


TEXT_THEN_DOT = json.dumps(
    {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "."}]}
)


@pytest.mark.parametrize("spec", [Ebnf('start: %json {"$ref": "#"}'), StructuralTag(TEXT_THEN_DOT)])
def test_what_xgrammar_cannot_have_either_is_not_tried_out(
    tiny_router: EngineRouter, spec: GrammarSpec
) -> None:
    assert not tiny_router.needs_probe(spec)
    with pytest.raises(UnsupportedConstraintError, match=r"has no base|xgrammar"):
        tiny_router.compile(spec)


@pytest.mark.parametrize(
    "spec", [Ebnf('start: "a" | "b"'), StructuralTag('{"type": "const_string", "value": "a"}')]
)
def test_what_was_compiled_to_see_whether_it_is_risky_is_not_compiled_again(
    spec: GrammarSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = EngineRouter(TINY)
    made: list[CompiledGrammar] = []
    compile_lark = GuidanceBackend.compile_lark

    def counted(backend: GuidanceBackend, grammar: str, source: Source | None = None) -> CompiledGuidance:
        compiled = compile_lark(backend, grammar, source)
        made.append(compiled)
        return compiled

    monkeypatch.setattr(GuidanceBackend, "compile_lark", counted)
    assert not router.needs_probe(spec)
    assert made == [router.compile(spec)]
    # Whoever asks again gets a grammar of its own; what nobody asks for is forgotten.
    assert router.compile(spec) is made[1]
    for index in range(10):
        router.needs_probe(Ebnf(f'start: "a" "{index}"'))
    assert router.compile(Ebnf('start: "a" "0"')) is made[12]


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema('{"type": "string", "pattern": "' + "(" * 5_000 + '"}', "xgrammar"),
        JsonSchema('{"enum": [{"a": 1}]}', "xgrammar"),
        Regex(r"\d", "xgrammar"),
        Regex("[a-z]{1,2000}", "outlines"),
        Choice(("a" * 3_000,), "outlines"),
        Ebnf('start: "a"', backend="xgrammar"),
    ],
)
def test_what_needs_no_engine_to_be_refused_is_refused_before_one_is_loaded(spec: GrammarSpec) -> None:
    with pytest.raises(InvalidRequestError):
        EngineRouter(TINY).needs_probe(spec)


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema("true", "outlines"),
        Ebnf('start: "a"', backend="outlines"),
        StructuralTag(TEXT_THEN_DOT, "outlines"),
    ],
)
def test_what_outlines_never_does_needs_no_probe(spec: GrammarSpec) -> None:
    router = EngineRouter(TINY)
    assert not router.needs_probe(spec)
    with pytest.raises(UnsupportedConstraintError, match="outlines"):
        router.compile(spec)


@pytest.mark.parametrize("last", ['"q"?', '"q"*', '("q" | "ww")?'])
def test_what_is_too_much_for_the_bounded_engine_goes_to_no_other(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules that double and may be empty: whoever writes them out never ends."""
    router = EngineRouter(TINY)
    monkeypatch.setattr(XgrammarBackend, "compile_ebnf", lambda *_: pytest.fail("xgrammar was asked"))
    rules = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(11))
    spec = Ebnf(f"root ::= r0\n{rules}\nr11 ::= {last}")
    assert router.needs_probe(spec)
    with pytest.raises(UnsupportedConstraintError, match="more than llguidance's limits allow") as error:
        router.compile(spec)
    assert type(error.value) is UnsupportedConstraintError, "it is known in every process"
    assert "make it smaller: fewer repetitions" in str(error.value)
    tag = {"type": "sequence", "elements": [{"type": "grammar", "grammar": spec.grammar}]}
    with pytest.raises(UnsupportedConstraintError, match="limits allow"):
        router.compile(StructuralTag(json.dumps({"type": "structural_tag", "format": tag})))
