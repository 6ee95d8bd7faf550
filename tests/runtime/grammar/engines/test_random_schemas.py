"""Random schemas: the tokens of a valid value are always permitted, and what a random walk writes is valid.

The oracle is jsonschema.
"""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.grammar.backend import GrammarMatcher
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import JsonSchema, UnsupportedConstraintError
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.grammar.engines.walking import takes

CLOSING = ('"', "}", "]", '"}', '"]', "},", '",')
Drawn = tuple[Any, st.SearchStrategy[Any]]
"""A schema, and its values."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.sampled_from(["a", "b", "name", 'q"\\', "é", "a b"])
PATTERNS = ["^[a-c]{1,4}$", "b+", "^(x|yz)?[0-9]$", "^[^a]{2}$"]


@st.composite
def leaves(draw: st.DrawFn) -> Drawn:
    match draw(
        st.sampled_from(
            ["null", "boolean", "integer", "bounded", "number", "string", "sized", "enum", "pattern"]
        )
    ):
        case "null":
            return {"type": "null"}, st.none()
        case "boolean":
            return {"type": "boolean"}, st.booleans()
        case "integer":
            return {"type": "integer"}, st.integers()
        case "bounded":
            low, high = sorted(draw(st.tuples(st.integers(-300, 300), st.integers(-300, 300))))
            return {"type": "integer", "minimum": low, "maximum": high}, st.integers(low, high)
        case "number":
            low = draw(st.integers(-20, 20))
            quarters: st.SearchStrategy[Any] = st.integers(low * 4, low * 4 + 40).map(
                lambda quarter: quarter / 4
            )
            return {"type": "number", "minimum": low, "maximum": low + 10}, quarters
        case "string":
            return {"type": "string"}, TEXT
        case "sized":
            low = draw(st.integers(0, 4))
            return {"type": "string", "minLength": low, "maxLength": low + 3}, st.text(
                st.characters(exclude_categories=["Cs"]), min_size=low, max_size=low + 3
            )
        case "enum":
            given_values = draw(
                st.lists(st.one_of(TEXT, st.integers(-9, 99), st.booleans(), st.none()), min_size=1, max_size=4)
            )
            return {"enum": given_values}, st.sampled_from(given_values)
        case _:
            pattern = draw(st.sampled_from(PATTERNS))
            texts = st.from_regex(pattern, alphabet=st.characters(codec="ascii"))
            # Python's $ matches in front of a last newline, that of JSON schemas does not.
            return {"type": "string", "pattern": pattern}, texts.filter(lambda text: not text.endswith("\n"))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    made = {name: draw(inner) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in made.items()},
        "required": required,
        "additionalProperties": False,
    }
    fixed = {name: made[name][1] for name in required}
    optional = {name: made[name][1] for name in names if name not in required}
    values = st.fixed_dictionaries(fixed, optional=optional)
    return schema, values.map(lambda value: {name: value[name] for name in names if name in value})


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    items, values = draw(inner)
    low = draw(st.integers(0, 2))
    high = low + draw(st.integers(0, 3))
    schema = {"type": "array", "items": items, "minItems": low, "maxItems": high}
    return schema, st.lists(values, min_size=low, max_size=high)


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    made = draw(st.lists(inner, min_size=1, max_size=3))
    return {"anyOf": [schema for schema, _ in made]}, st.one_of([values for _, values in made])


SCHEMAS = st.recursive(
    leaves(), lambda inner: st.one_of(objects(inner), arrays(inner), unions(inner)), max_leaves=6
)


@settings(max_examples=60)
@given(drawn=SCHEMAS, data=st.data())
def test_the_tokens_of_a_valid_value_are_permitted(
    router: EngineRouter, smollm2: FastTokenizer, drawn: Drawn, data: st.DataObject
) -> None:
    schema, values = drawn
    value = data.draw(values)
    jsonschema.validate(value, schema)
    compiled = router.compile(JsonSchema(json.dumps(schema), max_whitespace=2))
    style = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (",\n", ": ")]))
    text = json.dumps(value, ensure_ascii=False, separators=style)
    # JSON allows DEL as it is, llguidance wants it escaped. What the vocabulary cannot spell is left out.
    text = text.replace("\x7f", "\\u007f")
    token_ids = smollm2.encode(text)
    if smollm2.decode(token_ids) == text:
        assert takes(compiled, token_ids, smollm2), text


@pytest.mark.parametrize("engine", ["auto", "xgrammar"])
@settings(max_examples=40)
@given(drawn=SCHEMAS, seed=st.integers(0, 2**32 - 1))
def test_what_a_random_walk_writes_is_valid(
    router: EngineRouter, smollm2: FastTokenizer, engine: str, drawn: Drawn, seed: int
) -> None:
    schema, _ = drawn
    try:
        compiled = router.compile(JsonSchema(json.dumps(schema), engine, 2))
    except UnsupportedConstraintError:
        assert engine != "auto"
        return
    text = walk(compiled.matcher(), smollm2, np.random.default_rng(seed))
    if text is not None:
        value = json.loads(text)
        jsonschema.validate(value, schema)
        json.dumps(value, ensure_ascii=False).encode()


def walk(
    matcher: GrammarMatcher, tokenizer: FastTokenizer, random: np.random.Generator, max_tokens: int = 80
) -> str | None:
    """The text of random tokens, most often of those that close something; None: it did not end in time."""
    closing = np.zeros(tokenizer.vocab_size, dtype=bool)
    closing[[token_id for text in CLOSING for token_id in tokenizer.encode(text)]] = True
    row = np.zeros(-(-tokenizer.vocab_size // 32), dtype=np.int32)
    written: list[int] = []
    for _ in range(max_tokens):
        matcher.fill_bitmask(row)
        allowed = np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)[: tokenizer.vocab_size]
        choices = np.nonzero(allowed & closing)[0]
        stops = [token_id for token_id in tokenizer.stop_token_ids if allowed[token_id]]
        if stops and random.random() < 0.7:
            assert matcher.accept(stops[0])
            return tokenizer.decode(written)
        if not len(choices) or random.random() < 0.4:
            choices = np.nonzero(allowed)[0]
        token_id = int(random.choice(choices))
        if token_id in stops:
            continue
        assert matcher.accept(token_id), f"{token_id} is in the mask, and not accepted"
        written.append(token_id)
    return None
