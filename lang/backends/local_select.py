"""Scoring the options of a select.

Let x be the prompt's ids and y_i those of the prompt with option i as its text goes on, tokenised together. c
is the first place at which one of the y_i differs from x: len(x), unless an option changes how the prompt's end
is tokenised ("http:" and "//"). With

    S_i = log p(y_i[c:] | y_i[:c])     all options from the same place on
    K   = log p(x[c:] | x[:c])         the prompt's own end, which all of them repeat; 0 where c = len(x)
    n_i = how many tokens of y_i spell something of the option

the log probability of option i is S_i - K. The same K is taken from all, so what the prompt's end costs weighs
on none of them, however long it is.

    sum             S_i - K
    token_length    (S_i - K) / n_i
    unconditional   (S_i - K - U_i) / n_i, with U_i = log p(option i) at the beginning of a text
    greedy          sum over the tokens of y_i[c:] of their log probability among the tokens that some option
                    has there. Where an option ends and another goes on, the end has what the going on leaves
                    of 1. The best is found token by token.

At a temperature T option i is drawn with probability proportional to exp(score_i / T).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer import Tokenizer

NORMALIZATIONS = ("token_length", "greedy", "unconditional", "sum")


@dataclass(frozen=True, slots=True)
class OptionPlan:
    """What the engine has to score: ``continuations`` behind ``context``, each once."""

    context: list[int]
    continuations: list[list[int]]
    options: list[list[int]]
    """y_i[c:]."""
    num_own_tokens: list[int]
    """n_i."""
    prompt_end: list[int]
    """x[c:]; nothing where it has special tokens, which no option can spell."""

    @classmethod
    def of(cls, prompt: list[int], options: Sequence[list[int]], tokenizer: Tokenizer) -> "OptionPlan":
        """prompt: x. options: the y_i.

        Raises:
            InvalidRequestError: no token spells an option; or it would begin the text and the tokenizer has
                nothing for a text to begin with.
        """
        start = min(len(common_prefix(prompt, ids)) for ids in options)
        ends = [ids[start:] for ids in options]
        prompt_end = prompt[start:]
        if any(tokenizer.token_bytes(token_id) is None for token_id in prompt_end):
            # Not another tokenisation of the same text: the template asks for an answer with more than it
            # writes before one.
            prompt_end = []
        num_own = [_num_own_tokens(end, prompt_end, tokenizer) for end in ends]
        for index, count in enumerate(num_own):
            if not count:
                raise InvalidRequestError(
                    f"option {index} of the select has no token of this model; remove it", field="choices"
                )
        scored = [*ends]
        if prompt_end and not any(end[: len(prompt_end)] == prompt_end for end in ends):
            scored.append(prompt_end)
        unique = [list(ids) for ids in dict.fromkeys(map(tuple, scored))]
        return cls(prompt[:start] or beginning(tokenizer), unique, ends, num_own, prompt_end)

    @property
    def num_read_tokens(self) -> int:
        """What the model has to read to score all: the context, and all that a continuation's token follows."""
        inside = {tuple(ids[:length]) for ids in self.continuations for length in range(1, len(ids))}
        return len(self.context) + len(inside)

    def option_logprobs(self, scored: Sequence[Sequence[float]]) -> list[list[float]]:
        """From the continuations' log probabilities to those of each option, token by token."""
        known = dict(zip(map(tuple, self.continuations), scored, strict=True))
        return [list(known[tuple(ids)]) for ids in self.options]

    def prompt_end_logprob(self, scored: Sequence[Sequence[float]]) -> float:
        """K."""
        length = len(self.prompt_end)
        for ids, logprobs in zip(self.continuations, scored, strict=True):
            if ids[:length] == self.prompt_end:
                return sum(logprobs[:length])
        raise AssertionError("the plan scores the prompt's end")


def beginning(tokenizer: Tokenizer) -> list[int]:
    """What stands before the first token of a text: BOS, or the token that ends the text before it.

    Raises:
        InvalidRequestError: the tokenizer has neither.
    """
    if token_ids := tokenizer.encode("", add_bos=True):
        return token_ids
    for token_id in (tokenizer.bos_token_id, *tokenizer.stop_token_ids):
        if token_id is not None:
            return [token_id]
    raise InvalidRequestError(
        "select has nothing to score the options behind: this tokenizer has no token that begins a text; put a "
        "text in front, or choose another normalization",
        field="choices",
    )


def normalize(
    plan: OptionPlan,
    normalization: str,
    scored: Sequence[Sequence[float]],
    unconditional: Sequence[float] | None = None,
) -> list[float]:
    """One score an option, the higher the better. ``unconditional``: the U_i, where they are wanted."""
    logprobs = plan.option_logprobs(scored)
    if normalization == "greedy":
        return trie_scores(plan.options, logprobs)
    shared = plan.prompt_end_logprob(scored)
    totals = [sum(values) - shared for values in logprobs]
    if normalization == "sum":
        return totals
    if normalization == "unconditional":
        assert unconditional is not None
        totals = [total - other for total, other in zip(totals, unconditional, strict=True)]
    return [total / count for total, count in zip(totals, plan.num_own_tokens, strict=True)]


def choose(scores: Sequence[float], *, temperature: float, seed: int | None) -> int:
    """The first of the best, or one drawn."""
    best = max(range(len(scores)), key=lambda index: (scores[index], -index))
    if temperature <= 0 or scores[best] == -math.inf:
        return best
    weights = [math.exp((score - scores[best]) / temperature) for score in scores]
    return random.Random(seed).choices(range(len(scores)), weights)[0]


@dataclass(frozen=True, slots=True)
class _Branch:
    """The options that go on alike from a node, or (token None) those that end there."""

    members: list[int]
    logprob: float


def trie_scores(paths: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> list[float]:
    """For each path the sum of its log probabilities among the branches at each node of the paths' trie."""
    scores = [0.0] * len(paths)
    pending = [(list(range(len(paths))), 0)]
    while pending:
        members, depth = pending.pop()
        branches = _branches(paths, logprobs, members, depth)
        total = _log_sum([branch.logprob for branch in branches])
        for branch in branches:
            if len(branches) > 1:
                share = branch.logprob - total if total > -math.inf else -math.log(len(branches))
                for index in branch.members:
                    scores[index] += share
            if len(paths[branch.members[0]]) > depth:
                pending.append((branch.members, depth + 1))
    return scores


def greedy_choice(paths: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]) -> int:
    """The path found by taking the most probable branch at each node; of equal ones that of the first path."""
    members, depth = list(range(len(paths))), 0
    while True:
        branches = _branches(paths, logprobs, members, depth)
        members = max(branches, key=lambda branch: (branch.logprob, -branch.members[0])).members
        if len(paths[members[0]]) == depth:
            return members[0]
        depth += 1


def _branches(
    paths: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], members: list[int], depth: int
) -> list[_Branch]:
    """How the paths ``members``, which are alike up to ``depth``, go on."""
    ended = [index for index in members if len(paths[index]) == depth]
    going: dict[int, list[int]] = {}
    for index in members:
        if len(paths[index]) > depth:
            going.setdefault(paths[index][depth], []).append(index)
    branches = [_Branch(group, logprobs[group[0]][depth]) for group in going.values()]
    if ended:
        left = 1.0 - math.fsum(math.exp(branch.logprob) for branch in branches)
        branches.append(_Branch(ended, math.log(left) if left > 0 else -math.inf))
    return branches


def _log_sum(values: Sequence[float]) -> float:
    highest = max(values)
    if highest == -math.inf:
        return highest
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """What two lists of ids begin with alike."""
    return [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))]


def _num_own_tokens(token_ids: Sequence[int], prompt_end: Sequence[int], tokenizer: Tokenizer) -> int:
    """How many of the tokens reach beyond the bytes of the prompt's end."""
    rest = sum(len(tokenizer.token_bytes(token_id) or b"") for token_id in prompt_end)
    for index, token_id in enumerate(token_ids):
        rest -= len(tokenizer.token_bytes(token_id) or b"")
        if rest < 0:
            return len(token_ids) - index
    return 0
