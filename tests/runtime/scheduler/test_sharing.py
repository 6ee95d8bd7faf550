"""What is reused between two chunks of a prompt counts as cached: what was not computed is reported."""

from tests.runtime.scheduler.simulation import Steps, prompt_of, roomy_config


def test_a_prompt_that_follows_another_chunk_by_chunk_counts_what_it_reuses() -> None:
    steps = Steps(roomy_config(4, max_tokens_per_step=30))
    shared = prompt_of(120, 1)
    steps.submit("first", [*shared, 1], max_tokens=2)
    # The first chunk ends with a page and leaves a part of the budget: the second is admitted in the same step
    # with one chunk of the prefix in the cache, and takes the rest as the first one computes it.
    steps.submit("second", [*shared, 2], max_tokens=2)
    steps.drain()
    stats = steps.scheduler.stats()
    assert stats.num_prompt_tokens == 242
    assert stats.num_cached_tokens > 100
    # Every prompt token is cached or computed; so is each output but the last of a request.
    assert stats.num_computed_tokens == stats.num_prompt_tokens - stats.num_cached_tokens + 2
