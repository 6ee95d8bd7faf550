"""Grammars that are slow, refused or stuck, in a core with a real scheduler."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.engine.threads import EngineThread
from ramet.runtime.grammar import ChoiceBackend, GrammarCompiler
from ramet.runtime.grammar.backend import CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.choice import ChoiceMatcher, CompiledChoice
from ramet.runtime.grammar.compiler import CompileLimits
from ramet.runtime.grammar.guide import MaskWork
from ramet.runtime.grammar.service import JobThreads
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    EngineDeadError,
    FinishReason,
    GenerateInput,
    GrammarSpec,
    PromptTooLongError,
    Regex,
    SamplingParams,
    TextOutput,
    UnsupportedConstraintError,
)
from ramet.runtime.scheduler import Scheduler, SchedulerConfig
from ramet.runtime.tokenizer import ByteTokenizer
from tests.runtime.engine.fake_engine import VOCAB_SIZE, SpeakingExecutor

LIMIT = 60.0


class Gate:
    """Lets through whoever comes once it is open; what comes before waits."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def pass_through(self) -> None:
        assert self.open.wait(LIMIT)


class GatedBackend:
    """A regex without special characters is a choice of one. ``slow...`` compiles once the gate is open,
    ``bad...`` is refused then, ``stuck...`` has masks that wait for it from the third token on."""

    kinds = frozenset({"regex", "choice"})

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.choices = ChoiceBackend(ByteTokenizer())
        self.compiled: list[str] = []

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        if not isinstance(spec, Regex):
            return self.choices.compile(spec)
        self.compiled.append(spec.pattern)
        if spec.pattern.startswith(("slow", "bad")):
            self.gate.pass_through()
        if spec.pattern.startswith("bad"):
            raise UnsupportedConstraintError("this is bad; write another one", field="grammar")
        compiled = self.choices.compile(Choice((spec.pattern,)))
        return CompiledStuck(compiled, self.gate) if spec.pattern.startswith("stuck") else compiled


class CompiledStuck:
    def __init__(self, compiled: CompiledChoice, gate: Gate) -> None:
        self.compiled = compiled
        self.gate = gate

    def matcher(self) -> GrammarMatcher:
        return StuckMatcher(self.compiled, [self.compiled.start], self.gate)


class StuckMatcher(ChoiceMatcher):
    def __init__(self, compiled: CompiledChoice, path: list[object], gate: Gate) -> None:
        super().__init__(compiled, path)  # type: ignore[arg-type]
        self.gate = gate

    def fill_bitmask(self, row: npt.NDArray[np.int32]) -> None:
        if len(self._path) == 3:
            self.gate.pass_through()
        super().fill_bitmask(row)

    def forced_tokens(self) -> list[int]:
        return []


class Bench:
    """A core over the gated backend, with threads that compile and threads that fill masks."""

    def __init__(self, *, mask_deadline: float = LIMIT, limits: CompileLimits | None = None) -> None:
        self.gate = Gate()
        self.backend = GatedBackend(self.gate)
        tokenizer, wakeup = ByteTokenizer(), threading.Event()
        self.mask_threads = JobThreads("mask", 2)
        scheduler = Scheduler(
            SchedulerConfig(
                num_pages=500,
                page_size=4,
                context_length=400,
                vocab_size=VOCAB_SIZE,
                max_running_requests=8,
                max_tokens_per_step=64,
            ),
            stop_token_ids=tokenizer.stop_token_ids,
            mask_work=MaskWork(self.mask_threads, wakeup.set),
        )
        compiler = GrammarCompiler(self.backend, limits, on_done=wakeup.set)
        self.core = EngineCore(
            scheduler,
            # So that only masks that wait for the gate are late, on a busy machine too.
            SpeakingExecutor(mask_seconds=0.5),
            tokenizer,
            compiler,
            seed=0,
            wakeup=wakeup,
            mask_deadline=mask_deadline,
        )
        self.got: dict[str, list[TextOutput]] = {}

    def add(self, request_id: str, prompt: str = "x", **params: object) -> None:
        fields = {"temperature": 0.0, "max_tokens": 12, **params}
        self.core.add(
            GenerateInput(
                request_id=request_id,
                token_ids=list(prompt.encode()),
                params=SamplingParams(**fields),  # type: ignore[arg-type]
            )
        )
        self.got[request_id] = []

    def take(self, outputs: list[TextOutput]) -> None:
        for output in outputs:
            self.got[output.request_id].append(output)

    def run_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, "it never happened"
            self.take(self.core.step())
            self.core.check_integrity()

    def run(self) -> None:
        self.run_until(lambda: not self.core.has_work())

    def is_finished(self, request_id: str) -> bool:
        outputs = self.got[request_id]
        return bool(outputs) and outputs[-1].finish_reason is not None

    def text(self, request_id: str) -> str:
        return "".join(output.text for output in self.got[request_id])

    def end(self, request_id: str) -> TextOutput:
        return self.got[request_id][-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    close(bench)


def close(bench: Bench) -> None:
    bench.gate.open.set()
    bench.core.close()
    bench.mask_threads.close()


def test_a_request_waits_for_its_grammar_and_holds_nobody(bench: Bench) -> None:
    bench.add("slow", grammar=Regex("slow words"))
    bench.add("free")
    bench.add("quick", grammar=Choice(("yes", "no")))
    bench.run_until(lambda: bench.is_finished("free") and bench.is_finished("quick"))
    assert not bench.got["slow"]
    stats = bench.core.stats()
    assert (stats.compiling_requests, stats.waiting_requests, stats.running_requests) == (1, 0, 0)
    assert bench.text("quick") in ("yes", "no")
    bench.gate.open.set()
    bench.run()
    assert bench.text("slow") == "slow words"
    stats = bench.core.stats()
    assert (stats.compiling_requests, stats.grammar_misses, stats.refused_grammars) == (0, 2, 0)
    last = bench.end("slow").stats
    assert last is not None
    assert 0.0 < last.grammar_time <= last.queue_time
    assert stats.grammar_seconds > 0.0


def test_many_requests_of_one_grammar_compile_it_once(bench: Bench) -> None:
    for index in range(5):
        bench.add(f"r{index}", grammar=Regex("slow words"))
    assert bench.core.stats().compiling_requests == 5
    bench.gate.open.set()
    bench.run()
    assert {bench.text(f"r{index}") for index in range(5)} == {"slow words"}
    assert bench.backend.compiled == ["slow words"]
    assert bench.core.stats().grammar_hits == 4


def test_a_refused_grammar_fails_its_requests_only_and_by_name(bench: Bench) -> None:
    bench.add("bad", grammar=Regex("bad one"))
    bench.add("free")
    bench.gate.open.set()
    bench.run()
    end = bench.end("bad")
    assert (end.finish_reason, end.error, end.error_kind) == (
        FinishReason.ERROR,
        "this is bad; write another one",
        "UnsupportedConstraintError",
    )
    assert end.stats is not None
    assert bench.end("free").finish_reason is FinishReason.LENGTH
    with pytest.raises(UnsupportedConstraintError, match="write another one"):
        bench.add("again", grammar=Regex("bad one"))
    with pytest.raises(UnsupportedConstraintError, match="Ebnf"):
        bench.add("other", grammar=Ebnf("x"))
    assert bench.core.stats().failed_requests == 1


def test_aborting_while_the_grammar_compiles(bench: Bench) -> None:
    bench.add("slow", grammar=Regex("slow words"))
    bench.take(bench.core.step())
    bench.take(bench.core.abort("slow"))
    assert bench.end("slow").finish_reason is FinishReason.ABORT
    bench.core.check_integrity()
    assert not bench.core.has_work()
    bench.gate.open.set()
    bench.add("later", grammar=Regex("slow words"))
    bench.run()
    assert bench.text("later") == "slow words"


def test_what_is_wrong_with_the_request_is_said_before_its_grammar_is_compiled(bench: Bench) -> None:
    with pytest.raises(PromptTooLongError):
        bench.add("long", "x" * 1000, grammar=Regex("slow words"))
    bench.add("twice", grammar=Regex("slow words"))
    with pytest.raises(ValueError, match="twice"):
        bench.add("twice", grammar=Regex("slow words"))
    assert bench.core.stats().compiling_requests == 1


def test_a_compile_past_its_deadline_ends_its_request() -> None:
    bench = Bench(limits=CompileLimits(deadline=0.05))
    bench.add("slow", grammar=Regex("slow words"))
    bench.add("free")
    bench.run()
    assert "not done after" in (bench.end("slow").error or "")
    assert bench.end("slow").error_kind == "UnsupportedConstraintError"
    assert bench.end("free").finish_reason is FinishReason.LENGTH
    close(bench)


def test_a_row_whose_mask_is_late_sits_out_and_goes_on(bench: Bench) -> None:
    bench.add("stuck", grammar=Regex("stuck here"))
    bench.add("free", max_tokens=100)
    bench.run_until(lambda: bench.core.stats().late_masks == 1)
    bench.run_until(lambda: bench.is_finished("free"))
    assert bench.core.stats().late_masks == 1, "it was not computed again before its mask was there"
    assert not bench.is_finished("stuck")
    bench.gate.open.set()
    bench.run()
    assert bench.text("stuck") == "stuck here"
    last = bench.end("stuck").stats
    assert last is not None
    assert last.num_late_masks == 1


def test_aborting_and_shutting_down_while_a_mask_is_stuck(bench: Bench) -> None:
    bench.add("stuck", grammar=Regex("stuck here"))
    bench.add("other", grammar=Regex("stuck there"))
    bench.run_until(lambda: bench.core.stats().late_masks == 2)
    bench.take(bench.core.abort("stuck"))
    bench.core.check_integrity()
    assert bench.end("stuck").finish_reason is FinishReason.ABORT
    bench.core.close()


def test_past_the_mask_deadline_only_that_request_fails_and_its_grammar_is_refused() -> None:
    bench = Bench(mask_deadline=0.2)
    bench.add("stuck", grammar=Regex("stuck here"))
    bench.add("fine", grammar=Regex("fine"))
    bench.add("free", max_tokens=30)
    bench.run()
    end = bench.end("stuck")
    assert (end.finish_reason, end.error_kind) == (FinishReason.ERROR, "UnsupportedConstraintError")
    assert "mask was not there after 0.2 s, at output token 2" in (end.error or "")
    assert bench.text("fine") == "fine"
    assert bench.end("free").finish_reason is FinishReason.LENGTH
    with pytest.raises(UnsupportedConstraintError, match="mask was not there"):
        bench.add("again", grammar=Regex("stuck here"))
    close(bench)


def face_of(bench: Bench, thread: EngineThread | None = None) -> EngineFace:
    info = EngineInfo(
        model="speaking",
        vocab_size=VOCAB_SIZE,
        context_length=400,
        kv_tokens=2000,
        grammars=("regex", "choice"),
    )
    return EngineFace(EngineLoop(bench.core, info, thread), ByteTokenizer())


def test_a_refusal_that_is_found_out_late_is_raised_as_what_it_is(bench: Bench) -> None:
    bench.gate.open.set()
    with face_of(bench) as engine:
        with pytest.raises(UnsupportedConstraintError, match="write another one") as refused:
            engine.generate("x", grammar=Regex("bad one"))
        assert refused.value.field == "grammar"
        with pytest.raises(UnsupportedConstraintError, match="write another one"):
            list(engine.stream("x", grammar=Regex("bad two")))
        params = [SamplingParams(max_tokens=2), SamplingParams(max_tokens=2, grammar=Regex("bad three"))]
        outputs = engine.generate(["x", "x"], params, return_errors=True, progress=False)
        assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH, FinishReason.ERROR]
        # What is known to be refused, so refused before it is taken in, is no different.
        again = engine.generate(["x"] * 3, [params[1], *params], return_errors=True, progress=False)
        assert [output.finish_reason for output in again] == [
            FinishReason.ERROR,
            FinishReason.LENGTH,
            FinishReason.ERROR,
        ]
        assert again[0].error == outputs[1].error
        with pytest.raises(UnsupportedConstraintError, match="prompt 1 of the batch"):
            engine.generate(["x", "x"], params, progress=False)
        output = engine.generate("x", n=3, grammar=Regex("slow words"), max_tokens=20)
        assert [answer.text for answer in output.outputs] == ["slow words"] * 3


def test_closing_while_a_grammar_and_a_mask_are_stuck_does_not_wait_for_them(bench: Bench) -> None:
    thread = EngineThread()
    engine = face_of(bench, thread)
    streams = [engine.stream("x", grammar=Regex(pattern)) for pattern in ("slow words", "stuck here")]
    engine.close()
    assert not thread._thread.is_alive()
    assert not bench.gate.open.is_set()
    for stream in streams:
        with pytest.raises(EngineDeadError):
            list(stream)
