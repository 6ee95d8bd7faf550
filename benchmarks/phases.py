"""Where the time of a decode step goes: scheduling, building the batch, the model, sampling, commit, text.

The engine has no clocks of its own inside a step, so its parts are timed from outside, for the length of one
measurement: each is replaced on its instance by a function that calls it and keeps the time.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ramet import Engine, SamplingParams

PHASES = ("schedule", "build", "forward", "sample", "update", "output")
"""``output``: detokenising, stops in the text, statistics, and what the step does between its parts."""


@dataclass(frozen=True, slots=True)
class PhaseSplit:
    """Milliseconds of the median step, by phase; the phases of one step add up to it."""

    num_running: int
    num_steps: int
    step_ms: float
    phases_ms: dict[str, float]

    def metrics(self) -> dict[str, float | None]:
        """Shares of the sum of the phases' medians, and the share of all phases but the model."""
        total = sum(self.phases_ms.values())
        shares: dict[str, float | None] = {
            f"{name}_share": value / total for name, value in self.phases_ms.items()
        }
        return {
            "step_ms": self.step_ms,
            **{f"{name}_ms": value for name, value in self.phases_ms.items()},
            **shares,
            "bookkeeping_share": 1 - self.phases_ms["forward"] / total,
            "steps": float(self.num_steps),
        }


def measure_phases(engine: Engine, prompts: Sequence[str], max_tokens: int) -> PhaseSplit:
    """Generate ``max_tokens`` for all prompts at once and take apart the steps in which all of them decode.

    Raises:
        ValueError: there was no such step.
    """
    probe = _Probe()
    client: Any = engine._client
    with _installed_in(client, probe):
        engine.generate(
            list(prompts),
            SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            progress=False,
        )
    return probe.split(len(prompts))


class _Probe:
    """The clocks of the parts of an EngineCore; used from the engine's thread."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._num_tokens = 0
        self._num_rows = 0
        self._steps: list[tuple[int, int, float, dict[str, float]]] = []

    def install(self, core: Any) -> list[tuple[object, str]]:
        """Times the core's parts; returns what to delete again to undo it."""
        runner = core._executor
        parts: list[tuple[object, str, str]] = [
            (core._scheduler, "schedule", "schedule"),
            (runner._builder, "build", "build"),
            (runner, "_forward", "forward"),
            (runner._sampler, "sample", "sample"),
            (core._scheduler, "update", "update"),
        ]
        for owner, method, phase in parts:
            setattr(owner, method, partial(self._timed, phase, getattr(owner, method)))
        core.step = partial(self._step, core.step)
        return [(owner, method) for owner, method, _ in parts] + [(core, "step")]

    def split(self, num_running: int) -> PhaseSplit:
        steps = [
            (seconds, phases)
            for num_rows, num_tokens, seconds, phases in self._steps
            if num_rows == num_tokens == num_running
        ]
        if not steps:
            raise ValueError(f"there was no decode step of {num_running} requests")
        medians = {name: statistics.median(phases.get(name, 0.0) for _, phases in steps) for name in PHASES}
        return PhaseSplit(
            num_running=num_running,
            num_steps=len(steps),
            step_ms=statistics.median(seconds for seconds, _ in steps) * 1e3,
            phases_ms={name: value * 1e3 for name, value in medians.items()},
        )

    def _timed(self, phase: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments, **named)
        if phase == "forward" and torch.cuda.is_available():
            # The model is only queued on the device: its time would be the sampler's.
            torch.cuda.synchronize()
        self._now[phase] = self._now.get(phase, 0.0) + time.perf_counter() - started
        if phase == "schedule" and result is not None:
            self._num_rows, self._num_tokens = len(result.rows), result.num_tokens
        return result

    def _step(self, function: Callable[[], Any]) -> Any:
        self._now = {}
        started = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - started
        self._now["output"] = seconds - sum(self._now.values())
        self._steps.append((self._num_rows, self._num_tokens, seconds, self._now))
        return result


@contextmanager
def _installed_in(client: Any, probe: _Probe) -> Iterator[None]:
    replaced = client.call(probe.install)
    try:
        yield
    finally:
        client.call(lambda _core: _restore(replaced))


def _restore(replaced: Sequence[tuple[object, str]]) -> None:
    """Behind the attributes of the instances the methods of their classes show again."""
    for owner, method in replaced:
        delattr(owner, method)
