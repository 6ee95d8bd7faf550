"""Texts that are made while the next step runs on its device: the same ones, in order, before it ends."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.core import EngineCore
from ramet.runtime.protocol import Choice, FinishReason, GenerateInput, SamplingParams, TextOutput
from ramet.runtime.scheduler.batch import LaunchingExecutor, RowResult, ScheduledBatch
from tests.runtime.engine.fake_engine import SpeakingExecutor
from tests.runtime.engine.speaking import build_speaking, open_speaking


class LaunchingSpeaker(SpeakingExecutor):
    """Computes where a device would be waited for. ``events``: what happened, and what was heard."""

    def __init__(self, *, fails_to_launch: bool = False) -> None:
        super().__init__()
        self.events: list[str] = []
        self._fails_to_launch = fails_to_launch

    @property
    def runs_apart(self) -> bool:
        return True

    def launch(self, batch: ScheduledBatch) -> Callable[[], list[RowResult]]:
        if self._fails_to_launch and self.num_steps == 3:
            raise RuntimeError("the device is on fire")
        self.events.append("launch")

        def finish() -> list[RowResult]:
            self.events.append("finish")
            return self.run(batch)

        return finish


def ask(request_id: str, prompt: str, **params: Any) -> GenerateInput:
    params = {"temperature": 0.0, "max_tokens": 12, **params}
    return GenerateInput(
        request_id=request_id, token_ids=list(prompt.encode()), params=SamplingParams(**params)
    )


def heard_by(executor: LaunchingSpeaker) -> tuple[EngineCore, list[TextOutput]]:
    """A core, and what its listener has heard so far."""
    core, heard = build_speaking(executor=executor).core, []

    def listen(outputs: list[TextOutput]) -> None:
        executor.events.append("hear")
        heard.extend(outputs)

    core.hear(listen)
    return core, heard


def outputs_of(core: EngineCore, heard: list[TextOutput], checks: bool = False) -> dict[str, list[TextOutput]]:
    """All, in the order in which they were heard or returned."""
    found: dict[str, list[TextOutput]] = {}
    for _ in range(500):
        if not core.has_work():
            break
        before = len(heard)
        returned = core.step()
        for output in [*heard[before:], *returned]:
            found.setdefault(output.request_id, []).append(output)
        if checks:
            core.check_integrity()
    assert not core.has_work()
    return found


REQUESTS = [
    ask("plain", "say:héllo"),
    ask("stopped", "say:one STOP two", stop=("STOP",), max_tokens=30),
    ask("chosen", "x", grammar=Choice(("ab", "cd"))),
    ask("endless", "abc", max_tokens=7),
    ask("wrong", "row error"),
    ask("short", "say:a"),
    ask("drawn", "q", temperature=1.0, seed=3, max_tokens=5),
]


def transcript(outputs: list[TextOutput]) -> tuple[str, list[int], FinishReason | None, str | None]:
    assert [output.finish_reason is None for output in outputs[:-1]] == [True] * (len(outputs) - 1)
    text = "".join(output.text for output in outputs)
    ids = [token for output in outputs for token in output.token_ids]
    return text, ids, outputs[-1].finish_reason, outputs[-1].error


@given(
    chosen=st.lists(st.sampled_from(REQUESTS), unique_by=lambda request: request.request_id),
    checks=st.booleans(),
)
def test_what_is_heard_and_returned_is_what_plain_steps_return(
    chosen: list[GenerateInput], checks: bool
) -> None:
    plain = build_speaking().core
    late, heard = heard_by(LaunchingSpeaker())
    for core in (plain, late):
        for request in chosen:
            core.add(request)
    expected = {key: transcript(value) for key, value in outputs_of(plain, []).items()}
    assert {key: transcript(value) for key, value in outputs_of(late, heard, checks).items()} == expected
    late.check_integrity()
    assert late.stats().finished_requests == plain.stats().finished_requests


def test_a_text_is_made_between_the_next_launch_and_its_end() -> None:
    executor = LaunchingSpeaker()
    core, heard = heard_by(executor)
    core.add(ask("a", "say:abc"))
    assert core.step() == []
    assert heard == []
    assert core.step() == []
    assert executor.events == ["launch", "finish", "launch", "hear", "finish"]
    assert [output.text for output in heard] == ["a"]
    found = outputs_of(core, heard)
    assert "".join(output.text for output in found["a"]) == "bc"


def test_an_id_is_free_when_its_request_has_ended_and_aborts_keep_the_order() -> None:
    core, heard = heard_by(LaunchingSpeaker())
    core.add(ask("a", "say:x", max_tokens=1))
    core.add(ask("b", "say:yes, and more"))
    assert core.step() == []
    core.add(ask("a", "say:z", max_tokens=1))
    found = core.abort("b")
    assert [(output.text, output.finish_reason) for output in found] == [("y", None), ("", FinishReason.ABORT)]
    got = outputs_of(core, heard)
    assert [output.text for output in got["a"]] == ["x", "z"]
    assert core.abort("b") == []
    core.check_integrity()


@pytest.mark.parametrize("fails_to_launch", [True, False])
def test_a_step_that_fails_ends_its_requests_behind_their_texts(fails_to_launch: bool) -> None:
    core, heard = heard_by(LaunchingSpeaker(fails_to_launch=fails_to_launch))
    core.add(ask("a", "say:abcdef" if fails_to_launch else "say:abcdefboom"))
    (outputs,) = outputs_of(core, heard).values()
    text, _, reason, error = transcript(outputs)
    assert (text, reason) == ("abc", FinishReason.ERROR)
    assert "the device is on fire" in str(error)
    core.check_integrity()


def test_executors_that_compute_in_this_process_are_not_launched() -> None:
    assert not isinstance(SpeakingExecutor(), LaunchingExecutor)
    core = build_speaking().core
    core.hear(lambda outputs: pytest.fail("heard"))
    core.add(ask("a", "say:abc"))
    assert "".join(output.text for output in outputs_of(core, [])["a"]) == "abc"


def test_a_loop_delivers_what_it_hears() -> None:
    executor = LaunchingSpeaker()
    with open_speaking(executor=executor) as engine:
        results = engine.generate(["say:first", "say:second"], SamplingParams(temperature=0.0, max_tokens=20))
        assert [result.text for result in results] == ["first", "second"]
        stream = engine.stream("endless", SamplingParams(temperature=0.0, max_tokens=300))
        next(stream)
        stream.close()
        assert engine.generate("say:after", SamplingParams(temperature=0.0)).text == "after"
    assert "hear" not in executor.events
    assert executor.events.count("launch") == executor.events.count("finish")
