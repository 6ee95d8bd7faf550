"""The scheduler under random arrivals, aborts, failures, drafts and tiny pools.

After each operation: free + cached + held pages == total; every position that a row reads holds its own prefix;
nothing is written twice in a step. At the end: each request ended exactly once, with its lone run's tokens.
"""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from ramet.runtime.protocol import FinishReason
from tests.runtime.scheduler.simulation import (
    SESSIONS,
    Simulation,
    random_matcher,
    random_source,
    random_targets,
    tiny_config,
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        shares=st.booleans(),
        fcfs=st.booleans(),
        lfu=st.booleans(),
        drafts=st.booleans(),
        late=st.booleans(),
        running=st.integers(1, 5),
        budget=st.sampled_from([1, 3, 16, 64]),
        num_tokens=st.sampled_from([32, 48, 96]),
        headroom=st.sampled_from([0, 4]),
    )
    def start(
        self,
        page_size: int,
        shares: bool,
        fcfs: bool,
        lfu: bool,
        drafts: bool,
        late: bool,
        running: int,
        budget: int,
        num_tokens: int,
        headroom: int,
    ) -> None:
        config = tiny_config(
            page_size,
            num_pages=num_tokens // page_size,
            enable_prefix_cache=shares,
            max_running_requests=running,
            max_tokens_per_step=budget,
            admission_headroom=headroom,
        )
        self.simulation = Simulation(config, fcfs=fcfs, lfu=lfu, drafts=drafts, late=late)
        self.num_added = 0

    @rule(seed=st.integers(0, 10_000))
    def add(self, seed: int) -> None:
        rng = Random(seed)
        self.num_added += 1
        source = random_source(rng, f"r{self.num_added}", self.simulation.config)
        self.simulation.add(source, random_matcher(rng), random_targets(rng, source))

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @rule()
    def fail(self) -> None:
        self.simulation.step(fails=True)

    @rule(index=st.integers(0, 20))
    def abort(self, index: int) -> None:
        self.simulation.abort(f"r{index}")

    @rule(index=st.integers(0, 20))
    def finish(self, index: int) -> None:
        self.simulation.finish(f"r{index}")

    @rule(session=st.sampled_from(SESSIONS))
    def close(self, session: str) -> None:
        self.simulation.release(session)

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain()


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestScheduler = SchedulerMachine.TestCase


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_long_random_use(page_size: int, drafts: bool, shares: bool) -> None:
    rng = Random(page_size)
    num_preemptions = 0
    for round_ in range(12):
        config = tiny_config(
            page_size,
            num_pages=rng.choice([32, 48, 96]) // page_size,
            enable_prefix_cache=shares,
            max_tokens_per_step=rng.choice([4, 16, 64]),
            admission_headroom=rng.choice([0, 4, 16]),
        )
        simulation = Simulation(
            config, fcfs=round_ % 3 == 0, lfu=round_ % 2 == 0, drafts=drafts, late=round_ % 4 == 1
        )
        for index in range(60):
            source = random_source(rng, f"r{index}", config)
            simulation.add(source, random_matcher(rng), random_targets(rng, source))
            for _ in range(rng.choice([0, 0, 1, 3, 8])):
                simulation.step(fails=rng.random() < 0.02)
            if rng.random() < 0.1:
                simulation.abort(f"r{rng.randrange(index + 1)}")
            if rng.random() < 0.1:
                simulation.finish(f"r{rng.randrange(index + 1)}")
        simulation.drain()
        num_preemptions += simulation.scheduler.stats().num_preemptions
    assert num_preemptions > 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_whose_numbers_break_take_only_those_with_them_who_read_them(page_size: int) -> None:
    rng = Random(0)
    num_errors = 0
    for _ in range(8):
        config = tiny_config(page_size, num_pages=192 // page_size)
        simulation = Simulation(config)
        sources = [random_source(rng, f"r{index}", config) for index in range(40)]
        # A sharer of a prefix may stand on pages that broke: it may fail, but never get wrong tokens.
        simulation.may_fail.update(source.request_id for source in sources)
        for source in sources:
            if rng.random() < 0.2:
                simulation.executor.broken.add(source.request_id)
            simulation.add(source, random_matcher(rng), random_targets(rng, source))
            for _ in range(rng.randrange(4)):
                simulation.step()
        simulation.drain(reset=False)
        num_errors += list(simulation.endings.values()).count(FinishReason.ERROR)
        # What an aborted or preempted request left unproven costs one request; then it is gone.
        for index in range(20):
            source = replace(random_source(rng, "", config), request_id=f"late{index}")
            simulation.may_fail.add(source.request_id)
            simulation.add(source)
            simulation.drain(reset=False)
            if simulation.endings[source.request_id] is FinishReason.ERROR:
                simulation.add(replace(source, request_id=f"again{index}"))
                simulation.drain(reset=False)
    assert num_errors > 0
