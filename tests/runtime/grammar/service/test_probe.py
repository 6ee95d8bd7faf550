"""A child process that hangs, dies and is refused memory, and the parent that outlives it."""

import gc
import os
import threading
import time
from collections.abc import Iterator

import pytest

from ramet.runtime.grammar.service import GrammarProbe, PlainVocabulary, ProbeLimits
from ramet.runtime.protocol import Regex, RequestFailedError, UnsupportedConstraintError
from tests.runtime.grammar.service.reachable import builders_reachable  # noqa: F401
from tests.runtime.grammar.service.test_job_threads import LIMIT, until
from tests.runtime.grammar.service.troubled import BUILDER, VOCABULARY

MEMORY_BYTES = 256 << 20
LIMITS = ProbeLimits(seconds=LIMIT, memory_bytes=MEMORY_BYTES, num_steps=8)
IMPATIENT = ProbeLimits(seconds=3.0, memory_bytes=MEMORY_BYTES, num_steps=8)


def make(builder: str = BUILDER, limits: ProbeLimits = LIMITS) -> GrammarProbe:
    return GrammarProbe(builder, PlainVocabulary.of(VOCABULARY), limits)


@pytest.fixture(scope="module")
def probe() -> Iterator[GrammarProbe]:
    probe = make()
    yield probe
    probe.close()


def test_a_child_is_reused_and_refusals_come_back_as_they_were(probe: GrammarProbe) -> None:
    probe.try_out(Regex("aaa"))
    num_started = probe.num_started
    with pytest.raises(UnsupportedConstraintError, match="no, for a reason") as refused:
        probe.try_out(Regex("refuse"))
    assert refused.value.field == "grammar"
    with pytest.raises(RequestFailedError, match="not now"):
        probe.try_out(Regex("fail"))
    probe.try_out(Regex("aaaa"))
    assert probe.num_started == num_started


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("die", "SIGABRT"),
        ("leave", "exit code 3"),
        ("mask dies", "SIGABRT"),
        ("eat", "256 MiB"),
    ],
)
def test_what_dies_or_eats_memory_is_refused_and_the_next_one_compiles(
    probe: GrammarProbe, pattern: str, message: str
) -> None:
    with pytest.raises(UnsupportedConstraintError, match=message):
        probe.try_out(Regex(pattern))
    probe.try_out(Regex("a"))


@pytest.mark.parametrize("pattern", ["sleep 60", "mask sleeps"])
def test_what_hangs_is_refused_and_the_next_one_compiles(pattern: str) -> None:
    probe = make(limits=IMPATIENT)
    with pytest.raises(UnsupportedConstraintError, match="after 3 s"):
        probe.try_out(Regex(pattern))
    probe.try_out(Regex("a"))
    probe.close()


def test_what_an_engine_takes_to_be_loaded_is_not_the_specs_fault() -> None:
    limits = ProbeLimits(seconds=1.5, memory_bytes=MEMORY_BYTES, num_steps=8)
    probe = make(f"{BUILDER}_slow", limits)
    probe.try_out(Regex("a"))
    with pytest.raises(UnsupportedConstraintError, match="install it"):
        probe.try_out(Regex("missing"))
    probe.try_out(Regex("a"))
    assert probe.num_started == 1
    with pytest.raises(UnsupportedConstraintError, match=r"after 1\.5 s"):
        probe.try_out(Regex("sleep 60"))
    probe.close()


def test_a_builder_that_does_not_exist_is_the_start_failing() -> None:
    probe = make("tests.runtime.grammar.service.troubled:nothing")
    with pytest.raises(RequestFailedError, match="did not start"):
        probe.try_out(Regex("a"))
    probe.close()


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_closing_ends_a_trial_at_once(pause: float) -> None:
    probe = make(limits=LIMITS)
    errors: list[BaseException] = []

    def hang() -> None:
        try:
            probe.try_out(Regex("sleep 60"))
        except RequestFailedError as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    until(lambda: probe.num_started == 1)
    time.sleep(pause)
    probe.close()
    thread.join(LIMIT)
    assert "closed" in str(errors[0])
    assert probe._holder.child is None
    with pytest.raises(RequestFailedError, match="closed"):
        probe.try_out(Regex("a"))


def test_the_child_ends_with_the_probe() -> None:
    probe = make()
    probe.try_out(Regex("a"))
    assert probe._holder.child is not None
    pid = probe._holder.child.process.pid
    del probe
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
