"""Scores of continuations: the log probability of each after one prompt, in one request of the engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ramet.runtime.engine import prompts as checks
from ramet.runtime.engine.calls import Call
from ramet.runtime.engine.intake import Ask, Intake, check_routing, make_call
from ramet.runtime.engine.results import Score
from ramet.runtime.engine.score_requests import SCORING
from ramet.runtime.protocol import InvalidRequestError, RequestFailedError, RequestStats


class ScoreAnswer(Protocol):
    """What came back for the call of a ScorePlan."""

    def scores(self) -> list[list[float]]:
        """Of each continuation its tokens' log probabilities."""
        ...

    def stats(self) -> RequestStats: ...


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """The call that scores all continuations."""

    call: Call
    continuations: list[list[int]]
    texts: list[str]

    def scores(self, answer: ScoreAnswer, *, normalize: bool) -> list[Score]:
        """``normalize`` makes ``score`` the mean per token."""
        logprobs = answer.scores()
        found = [len(values) for values in logprobs]
        wanted = [len(token_ids) for token_ids in self.continuations]
        if found != wanted:
            raise RequestFailedError(
                f"the engine returned {found} log probabilities for continuations of {wanted} tokens"
            )
        return [
            _score(text, token_ids, values, answer.stats(), normalize=normalize)
            for text, token_ids, values in zip(self.texts, self.continuations, logprobs, strict=True)
        ]


def plan_scores(ask: Ask, continuations: object, intake: Intake, new_id: Callable[[], str]) -> ScorePlan:
    """One request with the prompt's token ids and those of the continuations.

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
    scored: list[list[int]] = []
    texts: list[str] = []
    for index, continuation in enumerate(continuations):
        try:
            token_ids = _continuation_ids(continuation, intake)
            checks.check_length(prompt_ids + token_ids, intake.info)
        except InvalidRequestError as error:
            raise type(error)(f"continuation {index}: {error}", field="continuations") from None
        scored.append(token_ids)
        texts.append(
            continuation
            if isinstance(continuation, str)
            else intake.tokenizer.decode(token_ids, skip_special_tokens=False, at_start=False)
        )
    return ScorePlan(make_call(ask, new_id(), prompt_ids, SCORING, tags[0], scored), scored, texts)


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


def _score(
    text: str, token_ids: list[int], logprobs: list[float], stats: RequestStats, *, normalize: bool
) -> Score:
    total = sum(logprobs)
    return Score(
        text=text,
        token_ids=token_ids,
        token_logprobs=logprobs,
        logprob=total,
        score=total / len(logprobs) if normalize else total,
        num_cached_tokens=stats.num_cached_tokens,
    )
