"""The simulation runs every request to its end, and finds what can be found."""

import pytest

from benchmarks.prefixes import PrefixRequest, chats, few_shot, infinite_hit_share, no_reuse, thought_trees
from benchmarks.simulation import EVICTIONS, POLICIES, CacheSetup, ordering_cost, simulate, step_costs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_large_cache_reaches_the_bound(policy: str, eviction: str) -> None:
    for requests in (few_shot(0, 0.1), chats(0, 0.1), thought_trees(0, 0.1)):
        setup = CacheSetup(200_000, policy=policy, eviction=eviction)
        done = simulate(requests, setup)
        assert done.hit_share == pytest.approx(infinite_hit_share(requests, setup.page_size), rel=0.01)
        assert done.num_evicted_tokens == 0


def test_a_small_cache_evicts_and_finds_less() -> None:
    requests = chats(0, 0.5)
    small, large = (simulate(requests, CacheSetup(size)) for size in (4_000, 200_000))
    assert small.num_evicted_tokens > 0
    assert small.hit_share < large.hit_share


def test_nothing_is_found_where_nothing_is_shared_or_the_cache_is_off() -> None:
    assert simulate(no_reuse(0, 0.1), CacheSetup(20_000)).hit_share == 0
    assert simulate(few_shot(0, 0.1), CacheSetup(20_000), enable_prefix_cache=False).hit_share == 0


def test_a_request_starts_after_the_one_it_waits_for() -> None:
    """The second prompt continues the first one's answer, so it can only be found when it has ended."""
    first = PrefixRequest(list(range(32)), [99] * 17)
    second = PrefixRequest(first.token_ids + first.output_token_ids + [1], [5], after=0)
    assert simulate([first, second], CacheSetup(1_000)).hit_share == pytest.approx(48 / 82)


@pytest.mark.parametrize("num_waiting", [0, 50])
def test_step_costs(num_waiting: int) -> None:
    found = step_costs(4, num_waiting, 20)
    assert all(value is None or value > 0 for value in found.values())
    assert (found["add_us"] is None) == (num_waiting == 0)


def test_ordering_cost() -> None:
    assert all(value is not None and value > 0 for value in ordering_cost(100).values())
