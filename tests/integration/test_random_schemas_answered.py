"""Random schemas and an engine whose model has random weights: whatever it answers is valid.

The schemas use every keyword that there is; the oracle is jsonschema. An answer that max_tokens would cut is
closed, so that each one can be judged.
"""

import json
from collections.abc import Iterator
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ramet.runtime.engine.core import EngineCore
from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import (
    GenerateInput,
    InvalidRequestError,
    JsonSchema,
    SamplingParams,
)
from ramet.runtime.tokenizer import ByteTokenizer
from tests.integration.rigs import Rig, Setting, tiny_model
from tests.runtime.grammar.schema.random_schemas import random_schema

MAX_STEPS = 2_000
RIGHT_REFUSALS = ("cannot be enforced", "no value can satisfy", "close_on_length is true")


@pytest.fixture(scope="module")
def core() -> Iterator[EngineCore]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    tokenizer = ByteTokenizer()
    rig = Rig(tiny_model("llama", "int8"), tokenizer)
    yield rig.core(Setting(kv_tokens=2048, cache=True), backend=EngineRouter(tokenizer))
    torch.set_num_threads(before)


@settings(max_examples=50)
@given(
    number=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 2**32 - 1),
    max_tokens=st.sampled_from((16, 32, 64)),
    max_whitespace=st.sampled_from((0, 1, 8)),
)
def test_every_answer_is_valid(
    core: EngineCore, number: int, seed: int, max_tokens: int, max_whitespace: int
) -> None:
    schema = random_schema(Random(number))
    grammar = JsonSchema(json.dumps(schema), max_whitespace=max_whitespace)
    params = SamplingParams(seed=seed, max_tokens=max_tokens, grammar=grammar, close_on_length=True)
    text, error = answer(core, GenerateInput(request_id="r", token_ids=[seed % 256], params=params))
    if error is not None:
        assert any(words in error for words in RIGHT_REFUSALS), error
        return
    value = json.loads(text)
    assert Draft202012Validator(schema).is_valid(value), (schema, text)
    json.dumps(value, ensure_ascii=False).encode()


def answer(core: EngineCore, source: GenerateInput) -> tuple[str, str | None]:
    """Text and error of one request, which ends within MAX_STEPS steps."""
    try:
        core.add(source)
    except InvalidRequestError as refusal:
        return "", str(refusal)
    text = ""
    for _ in range(MAX_STEPS):
        for output in core.step():
            text += output.text
            if output.finish_reason is not None:
                core.check_integrity()
                return text, output.error
    raise AssertionError(f"it did not end within {MAX_STEPS} steps: {text[-200:]!r}")
