"""The trie's paths against plain scoring of each continuation."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.score_trie import ScorePath, ScoreTrie


def logprob(before: Sequence[int], token_id: int) -> float:
    return -float(hash((tuple(before), token_id)) % 997)


def answered(trie: ScoreTrie) -> list[list[list[float]]]:
    """What a model says to each path."""
    return [
        [
            [logprob(path.token_ids[: path.first + place], token_id) for token_id in targets]
            for place, targets in enumerate(path.targets)
        ]
        for path in trie.paths
    ]


def test_options_of_one_token_need_the_prompt_alone() -> None:
    trie = ScoreTrie([[5], [7], [6]])
    assert trie.paths == [ScorePath((), 0, ((5, 7, 6),))]
    assert trie.num_computed_nodes == 0


def test_each_inner_node_is_computed_once() -> None:
    trie = ScoreTrie([[1, 2, 3], [1, 2, 4], [1, 5, 6], [9, 8], [1]])
    assert trie.paths == [
        ScorePath((1, 2), 0, ((1, 9), (2, 5), (3, 4))),
        ScorePath((1, 5), 2, ((6,),)),
        ScorePath((9,), 1, ((8,),)),
    ]
    assert trie.num_computed_nodes == 4


def test_long_continuations() -> None:
    first, second = list(range(5000)), [*range(100), 7, 8]
    trie = ScoreTrie([first, second])
    assert [len(path.targets) for path in trie.paths] == [5000, 1]
    assert [len(one) for one in trie.scores(answered(trie))] == [5000, 102]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12))
def test_scores_are_those_of_each_continuation_alone(continuations: list[list[int]]) -> None:
    trie = ScoreTrie(continuations)
    inner = {tuple(ids[:length]) for ids in continuations for length in range(len(ids))}
    computed = [
        path.token_ids[: path.first + place] for path in trie.paths for place in range(len(path.targets))
    ]
    assert len(computed) == len(set(computed)) == trie.num_computed_nodes + 1
    assert set(computed) == inner
    # A path goes on from what another one computes before it.
    for index, path in enumerate(trie.paths[1:], 1):
        before = {p.token_ids[:depth] for p in trie.paths[:index] for depth in range(len(p.token_ids) + 1)}
        assert path.token_ids[: path.first - 1] in before
    expected = [[logprob(ids[:place], token_id) for place, token_id in enumerate(ids)] for ids in continuations]
    assert trie.scores(answered(trie)) == expected
