"""The scores of options, from the log probabilities of a model of random numbers."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.backends.local_select import (
    OptionPlan,
    beginning,
    choose,
    greedy_choice,
    normalize,
    trie_scores,
)
from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.random_engine import RandomModel
from tests.lang.backends.small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()
MODEL = RandomModel(TOKENIZER.vocab_size)


def plan_of(prompt: str, *options: str, tokenizer: FastTokenizer = TOKENIZER) -> OptionPlan:
    return OptionPlan.of(
        tokenizer.encode(prompt), [tokenizer.encode(prompt + option) for option in options], tokenizer
    )


def scored(plan: OptionPlan) -> list[list[float]]:
    start = len(plan.context)
    return [MODEL.logprob(plan.context + ids, start) for ids in plan.continuations]


class TestPlan:
    def test_options_behind_an_untouched_prompt(self) -> None:
        plan = plan_of("It is", " Paris", " Rome", " Paris")
        assert plan.context == TOKENIZER.encode("It is")
        assert plan.continuations == [TOKENIZER.encode(" Paris"), TOKENIZER.encode(" Rome")]
        assert plan.options == [plan.continuations[0], plan.continuations[1], plan.continuations[0]]
        assert (plan.prompt_end, plan.num_own_tokens) == ([], [1, 1, 1])

    def test_an_option_that_changes_how_the_prompt_ends(self) -> None:
        plan = plan_of("http:", "//a", " the")
        (http,), (colon,), (slashes,) = (TOKENIZER.encode(text) for text in ("http", ":", "://"))
        assert plan.context == [http]
        assert plan.options == [[slashes, *b"a"], [colon, *TOKENIZER.encode(" the")]]
        assert plan.continuations == plan.options, "the second one has the prompt's end in it"
        assert (plan.prompt_end, plan.num_own_tokens) == ([colon], [2, 1])

    def test_the_prompts_end_is_scored_by_itself_where_no_option_has_it(self) -> None:
        plan = plan_of("http:", "//a", "//b")
        assert plan.continuations == [*plan.options, TOKENIZER.encode(":")]

    def test_at_the_beginning_of_a_text(self) -> None:
        bos = TOKENIZER.special_tokens["<s>"]
        assert plan_of("", "Yes", "no").context == [bos]
        assert plan_of("htt", "p", "x").context == [bos], "nothing of the prompt stays"
        assert beginning(small_tokenizer(bos="</s>")) == [TOKENIZER.special_tokens["</s>"]]

    def test_what_the_template_asks_with_is_not_the_prompts_end(self) -> None:
        think = TOKENIZER.special_tokens["<|think|>"]
        plan = OptionPlan.of([5, think, 10], [[5, 7], [5, 8, 9]], TOKENIZER)
        assert (plan.context, plan.prompt_end, plan.num_own_tokens) == ([5], [], [1, 2])

    def test_an_option_without_tokens(self) -> None:
        with pytest.raises(InvalidRequestError, match="option 1 of the select has no token"):
            OptionPlan.of([1], [[1, 2], [1]], TOKENIZER)


class TestNormalisations:
    def test_an_untouched_prompt(self) -> None:
        plan = plan_of("It is", " Paris", " Romeo")
        paris, romeo = scored(plan)
        assert normalize(plan, "sum", [paris, romeo]) == pytest.approx([sum(paris), sum(romeo)])
        means = [sum(paris), sum(romeo) / 2]
        assert normalize(plan, "token_length", [paris, romeo]) == pytest.approx(means)
        against = normalize(plan, "unconditional", [paris, romeo], [-1.0, -3.0])
        assert against == pytest.approx([means[0] + 1.0, means[1] + 1.5])

    @pytest.mark.parametrize("options", [("//a", " the"), ("//a", "//bc")])
    def test_the_prompts_end_weighs_on_no_option(self, options: tuple[str, str]) -> None:
        plan = plan_of("http:", *options)
        values = scored(plan)
        ids = [TOKENIZER.encode("http:" + option) for option in options]
        whole = [sum(MODEL.logprob(one, 1)) for one in ids]
        end = sum(MODEL.logprob(TOKENIZER.encode("http:"), 1))
        assert normalize(plan, "sum", values) == pytest.approx([total - end for total in whole])
        lengths = [2, 1] if options[1] == " the" else [2, 3]
        assert normalize(plan, "token_length", values) == pytest.approx(
            [(total - end) / length for total, length in zip(whole, lengths, strict=True)]
        )


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


class TestGreedy:
    def test_token_by_token_and_not_as_a_whole(self) -> None:
        paths = [[1, 2], [1, 3], [4]]
        logprobs = [logs(0.6, 0.3), logs(0.6, 0.3), logs(0.4)]
        assert greedy_choice(paths, logprobs) == 0
        assert trie_scores(paths, logprobs) == pytest.approx(logs(0.3, 0.3, 0.4))

    def test_the_end_of_an_option_has_what_going_on_leaves(self) -> None:
        paths, going = [[1], [1, 2]], 0.3
        logprobs = [logs(0.5), logs(0.5, going)]
        assert greedy_choice(paths, logprobs) == 0
        assert trie_scores(paths, logprobs) == pytest.approx(logs(0.7, 0.3))
        assert greedy_choice(paths, [logs(0.5), logs(0.5, 0.8)]) == 1

    def test_going_on_may_leave_nothing(self) -> None:
        scores = trie_scores([[1], [1, 2]], [[0.0], [0.0, 0.0]])
        assert scores == [-math.inf, 0.0]
        assert greedy_choice([[1], [1, 2]], [[0.0], [0.0, 0.0]]) == 1

    def test_equal_options_are_one(self) -> None:
        paths = [[1], [2], [1]]
        assert greedy_choice(paths, [logs(0.5), logs(0.5), logs(0.5)]) == 0
        assert trie_scores(paths, [logs(0.2), logs(0.6), logs(0.2)]) == pytest.approx(logs(0.25, 0.75, 0.25))

    def test_impossible_branches_are_equal(self) -> None:
        assert trie_scores([[1], [2]], [[-math.inf], [-math.inf]]) == pytest.approx(logs(0.5, 0.5))

    @given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8))
    def test_scores_are_a_distribution_over_different_options(self, paths: list[list[int]]) -> None:
        model = RandomModel(8)
        logprobs = [model.logprob([7, *path], 1) for path in paths]
        scores = {tuple(path): score for path, score in zip(paths, trie_scores(paths, logprobs), strict=True)}
        assert math.fsum(map(math.exp, scores.values())) == pytest.approx(1.0)
        best = greedy_choice(paths, logprobs)
        assert best == paths.index(list(paths[best])), "the first of equal options"


class TestChoose:
    def test_the_first_of_the_best(self) -> None:
        assert choose([-2.0, -1.0, -1.0], temperature=0.0, seed=None) == 1
        assert choose([-math.inf, -math.inf], temperature=1.0, seed=1) == 0

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_options_are_drawn_by_their_scores(self, temperature: float) -> None:
        scores = logs(0.6, 0.3, 0.1)
        drawn = Counter(choose(scores, temperature=temperature, seed=seed) for seed in range(3000))
        weights = [math.exp(score / temperature) for score in scores]
        for index, weight in enumerate(weights):
            assert drawn[index] / 3000 == pytest.approx(weight / sum(weights), abs=0.03)

    def test_a_seed_draws_the_same(self) -> None:
        def draws() -> Sequence[int]:
            return [choose(logs(0.5, 0.5), temperature=1.0, seed=seed) for seed in range(20)]

        assert draws() == draws()
        assert set(draws()) == {0, 1}
