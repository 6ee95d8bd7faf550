"""Answers that are validated: held back, sent whole, drawn again, failed by name; alone and in a core."""

import threading
import time
from collections.abc import Callable, Iterator
from string import ascii_lowercase

import msgspec
import pytest

from ramet.runtime.engine.answer_checks import AnswerChecks
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.grammar import ChoiceBackend, GrammarCompiler, PrefixBackend
from ramet.runtime.grammar.backend import Check, CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    GenerateInput,
    GrammarSpec,
    InvalidRequestError,
    Prefix,
    Regex,
    SamplingParams,
    TextOutput,
)
from ramet.runtime.scheduler import Scheduler, SchedulerConfig
from ramet.runtime.tokenizer import ByteTokenizer
from tests.runtime.engine.fake_engine import VOCAB_SIZE, SpeakingExecutor

LIMIT = 30.0
VOWELS = Regex("[aeiou]")
LONG = Regex("LONG")


class Weak:
    """A grammar that lets any of its options through, of which ``check`` takes some."""

    def __init__(self, compiled: CompiledGrammar, check: Check) -> None:
        self.compiled = compiled
        self.check = check

    def matcher(self) -> GrammarMatcher:
        return self.compiled.matcher()


class WeakBackend:
    """Any regex is enforced as a lower-case letter, and wants a vowel; ``LONG`` as a letter and 20 x."""

    kinds = frozenset({"regex", "choice"})

    def __init__(self, check: Check) -> None:
        self.check = check
        self.choices = ChoiceBackend(ByteTokenizer())

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if not isinstance(spec, Regex):
            return self.choices.compile(spec)
        tail = "x" * 20 if spec == LONG else ""
        options = tuple(letter + tail for letter in ascii_lowercase)
        return Weak(self.choices.compile(Choice(options)), self.check)


def wants_vowel(text: str) -> list[str]:
    return [] if text and text[0] in "aeiou" else [f"{text[:3]!r} begins with no vowel"]


def waiting_for(gate: threading.Event) -> Check:
    """Finds everything valid, once the gate is open."""

    def check(text: str) -> list[str]:
        assert gate.wait(LIMIT)
        return []

    return check


def core_of(
    check: Check = wants_vowel,
    *,
    max_resamples: int = 100,
    threads: JobThreads | None = None,
    seconds: float = LIMIT,
) -> EngineCore:
    tokenizer, wakeup = ByteTokenizer(), threading.Event()
    sizes = SchedulerConfig(
        num_pages=500,
        page_size=4,
        context_length=400,
        vocab_size=VOCAB_SIZE,
        max_running_requests=8,
        max_tokens_per_step=64,
    )
    backend = WeakBackend(check)
    return EngineCore(
        Scheduler(sizes, stop_token_ids=tokenizer.stop_token_ids),
        SpeakingExecutor(),
        tokenizer,
        GrammarCompiler(PrefixBackend(backend, lambda: backend.choices.tokens)),
        seed=0,
        wakeup=wakeup,
        checks=AnswerChecks(
            max_resamples, wakeup.set, seconds=seconds, threads=threads or JobThreads("check", 0)
        ),
    )


def ask(request_id: str = "a", grammar: GrammarSpec = VOWELS, **params: object) -> GenerateInput:
    fields = {"temperature": 1.0, "max_tokens": 8, "seed": 7, "grammar": grammar, **params}
    return GenerateInput(
        request_id=request_id,
        token_ids=list(b"any letter"),
        params=SamplingParams(**fields),  # type: ignore[arg-type]
    )


def outputs_of(core: EngineCore, *requests: GenerateInput) -> Iterator[TextOutput]:
    for request in requests:
        core.add(request)
    end = time.monotonic() + LIMIT
    while core.has_work():
        assert time.monotonic() < end, "it never ended"
        yield from core.step()
        core.check_integrity()


def answer(core: EngineCore, request: GenerateInput) -> TextOutput:
    """The one output that there is for it."""
    (output,) = outputs_of(core, request)
    return output


def resamples(output: TextOutput) -> int:
    assert output.stats is not None
    return output.stats.num_resamples


def test_what_is_not_valid_is_never_sent_and_drawn_again_with_another_seed() -> None:
    core = core_of()
    counts = []
    for seed in range(12):
        output = answer(core, ask(seed=seed))
        assert output.text in tuple("aeiou")
        assert bytes(output.token_ids[:1]).decode() == output.text
        assert output.finish_reason is FinishReason.STOP
        counts.append(resamples(output))
    assert max(counts) > 1
    assert core.stats().resampled_answers == sum(counts)
    assert (core.stats().finished_requests, core.stats().failed_requests) == (12, 0)
    assert core.stats().running_requests == 0


def test_the_same_request_is_answered_the_same() -> None:
    first, second = (answer(core_of(), ask(seed=3)) for _ in range(2))
    assert (first.text, first.token_ids, resamples(first)) == (second.text, second.token_ids, resamples(second))


def test_without_a_seed_each_attempt_has_one_of_its_own() -> None:
    outputs = list(outputs_of(core_of(), *(ask(str(i), seed=None) for i in range(20))))
    assert {output.text for output in outputs} <= set("aeiou")
    assert sum(map(resamples, outputs)) > 10


def test_past_the_limit_the_request_fails_by_name() -> None:
    never: Callable[[str], list[str]] = lambda text: ["$: it is wrong"]  # noqa: E731
    core = core_of(never, max_resamples=2)
    output = answer(core, ask())
    assert (output.finish_reason, output.error_kind) == (FinishReason.ERROR, "RequestFailedError")
    assert "none of 3 answers meets the schema; of the last: $: it is wrong" in (output.error or "")
    assert (output.text, output.token_ids, resamples(output)) == ("", [], 2)
    assert core.stats().failed_requests == 1
    once = answer(core_of(never, max_resamples=0), ask())
    assert "none of 1 answers" in (once.error or "")


def test_a_greedy_answer_is_not_drawn_again() -> None:
    core = core_of(lambda text: ["$: it is wrong"])
    output = answer(core, ask(temperature=0.0))
    assert "at temperature 0 another would be the same" in (output.error or "")
    assert core.stats().resampled_answers == 0


def test_what_was_cut_is_sent_with_the_reason_and_not_validated() -> None:
    output = answer(core_of(lambda text: ["wrong"]), ask(grammar=LONG, max_tokens=5))
    assert (output.finish_reason, len(output.text)) == (FinishReason.LENGTH, 5)
    output = answer(core_of(lambda text: ["wrong"]), ask(grammar=LONG, max_tokens=50, stop=("xxx",)))
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, "xxx")
    assert len(output.text) == 1


def test_log_probabilities_are_those_of_the_answer_that_is_kept() -> None:
    output = answer(core_of(), ask(logprobs=0, prompt_logprobs=0, seed=2))
    assert resamples(output)
    assert output.logprobs is not None
    assert [item.chosen.token_id for item in output.logprobs] == output.token_ids
    assert len(output.prompt_logprobs or ()) == len("any letter")


def test_behind_a_prefix_the_answer_is_what_follows() -> None:
    output = answer(core_of(), ask(grammar=Prefix("say ", VOWELS)))
    assert output.text in tuple("aeiou")


def test_others_go_on_and_stream_meanwhile() -> None:
    gate = threading.Event()
    core = core_of(waiting_for(gate), threads=JobThreads("check", 1))
    core.add(ask("held"))
    core.add(ask("free", Choice(("yes" * 20,)), max_tokens=60))
    seen: list[TextOutput] = []
    while not seen or seen[-1].finish_reason is None:
        seen += core.step()
    assert {output.request_id for output in seen} == {"free"}
    assert len(seen) > 20
    assert core.has_work()
    with pytest.raises(InvalidRequestError, match="belongs to a running request"):
        core.add(ask("held"))
    core.check_integrity()
    gate.set()
    (output,) = outputs_of(core)
    assert (output.request_id, output.finish_reason) == ("held", FinishReason.STOP)


def test_a_request_is_aborted_at_any_time() -> None:
    gate = threading.Event()
    core = core_of(waiting_for(gate), threads=JobThreads("check", 1))
    core.add(ask("running", LONG, max_tokens=30))
    core.step()
    core.add(ask("checked"))
    for _ in range(5):
        assert not core.step()
    for request_id in ("running", "checked"):
        (output,) = core.abort(request_id)
        assert (output.request_id, output.finish_reason) == (request_id, FinishReason.ABORT)
        assert output.stats is not None
        assert output.text == ""
        assert core.abort(request_id) == []
    gate.set()
    assert not core.has_work()
    assert core.stats().aborted_requests == 2
    core.check_integrity()


def test_a_validation_that_does_not_end_costs_its_request_alone() -> None:
    gate = threading.Event()
    core = core_of(waiting_for(gate), threads=JobThreads("check", 1), seconds=0.05)
    output = answer(core, ask())
    assert "not validated within 0.05 s" in (output.error or "")
    gate.set()
    assert answer(core, ask("b")).finish_reason is FinishReason.STOP


def test_a_validation_that_raises_is_the_answers_failure() -> None:
    def check(text: str) -> list[str]:
        raise LookupError("no such reference")

    output = answer(core_of(check), ask())
    assert "could not be validated: LookupError: no such reference" in (output.error or "")


def test_the_limit_is_a_setting() -> None:
    assert EngineConfig().max_resamples == 3
    with pytest.raises(InvalidRequestError, match="max_resamples is -1"):
        EngineConfig(max_resamples=-1)
    assert msgspec.structs.replace(EngineConfig(), max_resamples=0).max_resamples == 0
