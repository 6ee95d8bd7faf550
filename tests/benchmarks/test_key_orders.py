"""Values as text, their keys in an order that a grammar allows."""

import json

from benchmarks.key_orders import orders, written
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.grammar.token_table import TokenTable
from ramet.runtime.protocol import JsonSchema
from tests.runtime.grammar.engines.walking import TINY, spelled, takes

INNER = {"type": "object", "properties": {"q": {"type": "integer"}, "p": {"type": "integer"}}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": INNER}, "c": {"type": "null"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOKENS = TokenTable(TINY)


def texts(value: object, schema: object = SCHEMA) -> list[str]:
    compiled = EngineRouter(TINY).compile(JsonSchema(json.dumps(SCHEMA)))
    return list(orders(value, schema, compiled.matcher(), TOKENS))


def test_a_value_that_is_in_order_is_written_once() -> None:
    assert texts({"a": 1, "c": None}) == ['{"a": 1, "c": null}']
    assert written([1.0, 1.5, {"a": 2.0}]) == '[1, 1.5, {"a": 2}]'


def test_the_declared_order_is_tried() -> None:
    assert texts({"c": None, "b": [], "a": 1})[1] == '{"a": 1, "b": [], "c": null}'


def test_the_grammar_is_asked_where_the_schema_does_not_tell() -> None:
    value = {"c": None, "b": [{"p": 1, "q": 2}, {}], "a": 1}
    compiled = EngineRouter(TINY).compile(JsonSchema(json.dumps(SCHEMA)))
    found = texts(value, {})[-1]
    assert json.loads(found) == value
    assert takes(compiled, spelled(found, TINY), TINY)


def test_what_no_order_makes_valid_is_written_as_it_is() -> None:
    assert texts({"c": 1, "a": 2}, {}) == ['{"c": 1, "a": 2}']
    assert texts({"x": 1}) == ['{"x": 1}']


def test_a_large_value_is_not_searched_for() -> None:
    assert len(texts({"b": [{"p": 1, "q": 2}] * 400, "a": 1}, {})) == 1
