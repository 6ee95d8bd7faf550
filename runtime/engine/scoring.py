"""Scores of continuations: the log probability of each after one prompt, from the prompt's log probabilities of
both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.runtime.engine import prompts as checks
from ramet.runtime.engine.calls import Call
from ramet.runtime.engine.intake import Ask, Intake, check_routing, make_call
from ramet.runtime.engine.results import Output, Score
from ramet.runtime.protocol import InvalidRequestError, RequestFailedError, SamplingParams


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """One call a continuation. Their prompts begin alike, so what they share is computed once."""

    calls: list[Call]
    continuations: list[list[int]]
    texts: list[str]

    def scores(self, outputs: Sequence[Output], *, normalize: bool) -> list[Score]:
        """From the calls' outputs; ``normalize`` makes ``score`` the mean per token."""
        return [
            _score(output, token_ids, text, normalize=normalize)
            for output, token_ids, text in zip(outputs, self.continuations, self.texts, strict=True)
        ]


def plan_scores(ask: Ask, continuations: object, intake: Intake, new_id: Callable[[], str]) -> ScorePlan:
    """Requests whose prompt is the prompt's token ids with a continuation's behind them.

    A continuation is tokenised by itself, without BOS: its first token never merges with the prompt's last one.

    Raises:
        InvalidRequestError: a prompt that is a batch, or a continuation that is empty, too long or no text.
    """
    token_lists, is_batch = intake.encode(ask)
    if is_batch:
        raise InvalidRequestError("score takes one prompt; call it once for each", field="prompts")
    (prompt_ids,) = token_lists
    if not isinstance(continuations, list | tuple) or not continuations:
        raise InvalidRequestError(
            "continuations must be a list of at least one text (or list of token ids)", field="continuations"
        )
    tags = checks.resolve_tags(ask.tag, 1)
    check_routing(ask, tags)
    # One token has to be sampled for a request to be one; it is thrown away.
    params = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=0, prompt_logprobs_start=len(prompt_ids)
    )
    plan = ScorePlan([], [], [])
    for index, continuation in enumerate(continuations):
        try:
            token_ids = _continuation_ids(continuation, intake)
            checks.check_length(prompt_ids + token_ids, intake.info)
        except InvalidRequestError as error:
            raise type(error)(f"continuation {index}: {error}", field="continuations") from None
        plan.calls.append(make_call(ask, new_id(), prompt_ids + token_ids, params, tags[0]))
        plan.continuations.append(token_ids)
        plan.texts.append(
            continuation
            if isinstance(continuation, str)
            else intake.tokenizer.decode(token_ids, skip_special_tokens=False, at_start=False)
        )
    return plan


def _continuation_ids(continuation: object, intake: Intake) -> list[int]:
    if isinstance(continuation, str):
        text = checks.check_text(continuation, "it")
        token_ids = intake.tokenizer.encode(text, allow_special=True, at_start=False)
    elif isinstance(continuation, list | tuple):
        token_ids = checks.check_token_ids(continuation, intake.info, "continuations")
    else:
        raise InvalidRequestError(
            f"it is a {type(continuation).__name__}; it must be a text or a list of token ids"
        )
    if not token_ids:
        raise InvalidRequestError("it is empty; it needs at least one token")
    return token_ids


def _score(output: Output, token_ids: list[int], text: str, *, normalize: bool) -> Score:
    # The continuation is the end of the prompt, so its entries are the last ones.
    entries = (output.prompt_logprobs or [])[-len(token_ids) :]
    values = [entry.chosen.logprob for entry in entries if entry is not None]
    if len(values) != len(token_ids):
        raise RequestFailedError(
            f"the engine returned {len(values)} log probabilities for {len(token_ids)} continuation tokens"
        )
    total = sum(values)
    return Score(
        text=text,
        token_ids=token_ids,
        token_logprobs=values,
        logprob=total,
        score=total / len(values) if normalize else total,
        num_cached_tokens=output.stats.num_cached_tokens,
    )
