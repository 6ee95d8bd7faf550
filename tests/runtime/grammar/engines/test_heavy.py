"""What is tried in another process first, by its size written out, and that one by one engine only."""

import json
from typing import Any

import pytest

from ramet.runtime.grammar.compiler import CompileLimits, GrammarCompiler
from ramet.runtime.grammar.engines import router as router_module
from ramet.runtime.grammar.engines.heavy import MAX_LIGHT, is_heavy_grammar, is_heavy_tag
from ramet.runtime.grammar.engines.router import EngineRouter
from ramet.runtime.grammar.engines.structural import StructuralDocument, read_structural_tag
from ramet.runtime.grammar.schema import Pace
from ramet.runtime.grammar.service import ProbeLimits
from ramet.runtime.protocol import (
    Ebnf,
    GrammarSpec,
    JsonSchema,
    Prefix,
    StructuralTag,
    UnsupportedConstraintError,
)
from tests.runtime.grammar.engines.walking import TINY

LETTER: dict[str, Any] = {"type": "const_string", "value": "ab"}


def doubling(levels: int) -> str:
    rules = "\n".join(f"r{level} ::= r{level + 1} r{level + 1}" for level in range(levels))
    return f'root ::= r0\n{rules}\nr{levels} ::= "a"'


def repeated(content: object, *counts: int) -> object:
    for count in counts:
        content = {"type": "repeat", "content": content, "min": 0, "max": count}
    return content


def tag(format_: object) -> StructuralTag:
    return StructuralTag(json.dumps({"type": "structural_tag", "format": format_}))


@pytest.mark.parametrize(
    ("grammar", "is_heavy"),
    [
        ('root ::= "yes" | "no"', False),
        (doubling(10), False),
        (doubling(12), True),
        ('root ::= ("a"? "b"){0,40}', False),
        ('root ::= (("a"? "b"){0,40} "c"){0,40}', True),
        ('root ::= "a"{1,3000}', True),
        ('root ::= ("a"{2,})+', False),
        ('root ::= "(" root ")" root | ""', False),
        ("start: x~1..90\nx: y~1..90\ny: /a/", True),
        ("start: x x\nx: /a{1,90}/", False),
    ],
)
def test_grammars(grammar: str, is_heavy: bool) -> None:
    assert is_heavy_grammar(Ebnf(grammar)) == is_heavy


@pytest.mark.parametrize(
    ("format_", "is_heavy"),
    [
        (LETTER, False),
        (repeated(LETTER, 40, 40), False),
        (repeated(LETTER, 50, 50), True),
        ({"type": "sequence", "elements": [repeated(LETTER, 40, 40)] * 2}, True),
        ({"type": "tag", "begin": "<", "end": ">", "content": repeated(LETTER, 50, 50)}, True),
        (repeated({"type": "grammar", "grammar": doubling(8)}, 20), True),
        ({"type": "grammar", "grammar": doubling(8)}, False),
    ],
)
def test_structural_tags(format_: object, is_heavy: bool) -> None:
    assert is_heavy_tag(read_structural_tag(tag(format_).spec)) == is_heavy
    assert MAX_LIGHT == 2_000


@pytest.mark.parametrize("spec", [Ebnf(doubling(12)), tag(repeated(LETTER, 50, 50))])
@pytest.mark.parametrize("backend", ["auto", "llguidance"])
def test_a_heavy_one_is_tried_in_another_process(spec: Ebnf | StructuralTag, backend: str) -> None:
    heavy = type(spec)(spec.spec if isinstance(spec, StructuralTag) else spec.grammar, backend=backend)
    router = EngineRouter(TINY)
    assert router.needs_probe(heavy)
    assert router.needs_probe(Prefix("x", heavy))


def test_what_is_refused_for_its_length_is_not_read() -> None:
    assert not is_heavy_grammar(Ebnf(doubling(12) + "\n# " + "x" * 600_000))


def test_a_tag_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str, pace: Pace | None) -> StructuralDocument:
        read.append(text)
        return read_structural_tag(text, pace)

    monkeypatch.setattr(router_module, "read_structural_tag", counted)
    router, spec = EngineRouter(TINY), tag(LETTER)
    assert not router.needs_probe(spec)
    router.compile(spec)
    assert read == [spec.spec]


OVERLAPPING = {
    "oneOf": [{"type": "string", "pattern": f"^(.{{0,{300 + index}}}x)?{index}$"} for index in range(30)]
}
LONG_TO_PLAN = json.dumps(OVERLAPPING)


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema(LONG_TO_PLAN),
        JsonSchema(LONG_TO_PLAN, strict=False),
        JsonSchema(LONG_TO_PLAN, backend="xgrammar"),
        JsonSchema(LONG_TO_PLAN, backend="llguidance"),
        Ebnf(f"start: %json {LONG_TO_PLAN}"),
        tag({"type": "json_schema", "json_schema": OVERLAPPING}),
        tag({"type": "grammar", "grammar": f"start: %json {LONG_TO_PLAN}", "syntax": "lark"}),
        Prefix("x", JsonSchema(LONG_TO_PLAN)),
    ],
)
def test_schemas_that_take_long_to_plan_are_tried_in_another_process(
    spec: GrammarSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "LIGHT_SECONDS", 0.02)
    assert EngineRouter(TINY).needs_probe(spec)


def test_planning_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "LIGHT_SECONDS", 0.02)
    limits = CompileLimits(probe=ProbeLimits(seconds=0.5))
    compiler = GrammarCompiler(EngineRouter(TINY), limits, vocabulary=TINY)
    try:
        with pytest.raises(UnsupportedConstraintError, match=r"not done after 0\.5 s, and was ended") as caught:
            compiler.compile(JsonSchema(LONG_TO_PLAN, backend="llguidance"))
        assert caught.value.field == "grammar"
        assert compiler.stats().num_stuck_threads == 0
    finally:
        compiler.close()
