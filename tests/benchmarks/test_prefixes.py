"""The bound of an infinite cache, by hand and against a set of all prefixes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.prefixes import (
    PrefixRequest,
    chats,
    few_shot,
    from_trace,
    infinite_hit_share,
    no_reuse,
    thought_trees,
)
from benchmarks.workloads import TraceRequest

Make = Callable[..., list[PrefixRequest]]


def request(*token_ids: int, output: tuple[int, ...] = (99,)) -> PrefixRequest:
    return PrefixRequest(list(token_ids), list(output))


def test_the_bound_by_hand() -> None:
    requests = [request(1, 2, 3, 4), request(1, 2, 3, 4), request(1, 2, 5, 6)]
    # Page size 1: nothing, then 3 of 4 (the last token is computed), then 2.
    assert infinite_hit_share(requests, 1) == 5 / 12
    # Page size 2: nothing, then one page, then one page.
    assert infinite_hit_share(requests, 2) == 4 / 12
    assert infinite_hit_share(requests, 8) == 0


def test_outputs_are_found_but_for_their_last_token() -> None:
    requests = [request(1, 2, output=(3, 4)), request(1, 2, 3, 4, 5)]
    assert infinite_hit_share(requests, 1) == 3 / 7


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=12), st.lists(st.integers(1, 3), max_size=4)
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 4),
)
def test_the_bound_against_all_prefixes(items: list[tuple[list[int], list[int]]], page_size: int) -> None:
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for prompt, output in items:
        computed = prompt + output[:-1]
        ends = range(page_size, len(computed) + 1, page_size)
        hits += max((end for end in ends if end < len(prompt) and tuple(prompt[:end]) in seen), default=0)
        seen |= {tuple(computed[:end]) for end in ends}
    requests = [PrefixRequest(prompt, output) for prompt, output in items]
    assert infinite_hit_share(requests, page_size) == hits / sum(len(prompt) for prompt, _ in items)


@pytest.mark.parametrize(
    ("make", "low", "high"),
    [(few_shot, 0.85, 0.95), (chats, 0.7, 0.85), (thought_trees, 0.75, 0.95), (no_reuse, 0.0, 0.0)],
)
def test_synthetic_workloads_share_what_they_say(make: Make, low: float, high: float) -> None:
    assert make(0) == make(0)
    assert make(0) != make(1)
    assert low <= infinite_hit_share(make(0), 16) <= high
    assert len(make(0, 0.5)) == pytest.approx(len(make(0)) / 2, abs=8)


def test_a_request_waits_for_what_it_builds_on() -> None:
    for requests in (chats(0, 0.1), thought_trees(0, 0.1)):
        waiting = [item for item in requests if item.after is not None]
        assert waiting
        for item in waiting:
            before = requests[item.after or 0].token_ids
            assert item.token_ids[: len(before)] == before


def test_trace_blocks_become_tokens() -> None:
    (made,) = from_trace([TraceRequest((7, 9), 600, 500)], max_output_tokens=8)
    assert made.token_ids == [7] * 512 + [9] * 88
    assert len(made.output_token_ids) == 8


def test_answers_are_in_no_prompt_and_differ() -> None:
    requests = few_shot(0, 0.1)
    outputs = [token for item in requests for token in item.output_token_ids]
    assert not set(outputs) & {token for item in requests for token in item.token_ids}
    assert len(set(outputs)) == len(outputs)
