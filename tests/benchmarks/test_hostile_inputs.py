"""Every hostile constraint is compiled or refused by name, in a compiler like an engine's."""

import pytest

from benchmarks.hostile_inputs import HostileInput, hostile_inputs
from ramet.runtime.grammar import GrammarCompiler
from ramet.runtime.grammar.engines import LazyRouter
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import ByteTokenizer

INPUTS = {item.name: item for item in hostile_inputs()}
LONG = (
    "gbnf that is nothing but itself",
    "gbnf of 20,000 rules",
    "xgrammar: minItems 5,000",
    "regex of 20,000 alternatives",
    "5,000 tags",
)
"""llguidance and the child process take their time; in the benchmark they are tried too."""


def outcome(compiler: GrammarCompiler, item: HostileInput) -> str:
    try:
        compiler.compile(item.make())
    except InvalidRequestError as error:
        return str(error)
    return "compiled"


def test_there_are_a_hundred() -> None:
    assert len(INPUTS) == len(hostile_inputs()) > 100


@pytest.mark.slow
def test_each_is_compiled_or_refused_by_name() -> None:
    vocabulary = ByteTokenizer()
    compiler = GrammarCompiler(LazyRouter(vocabulary), vocabulary=vocabulary)
    try:
        outcomes = {name: outcome(compiler, item) for name, item in INPUTS.items() if name not in LONG}
        assert compiler.stats().num_stuck_threads == 0
    finally:
        compiler.close()
    assert all(outcomes.values())
    refused = {name for name, found in outcomes.items() if found != "compiled"}
    for name in (
        "pattern of 30000 parentheses",
        "1,000 levels of items",
        "an enum of 50,000 strings",
        "an enum of a string of 1 MB",
        "recursion without a base",
        "a reference to file:///etc/passwd",
        "a reference to http://127.0.0.1:9/schema",
        "NUL in a pattern",
        "pattern a{1,100000}",
        "anyOf of 4,000 objects",
        "60 overlapping patternProperties",
        "multipleOf 0.123456789",
        "NaN",
    ):
        assert name in refused, name
    for name in (
        r"regex (\w+\s?){1,50}",
        r"pattern (a+)+$",
        "a chain of 4,000 references",
        "a choice of 50,000",
    ):
        assert name not in refused, name
