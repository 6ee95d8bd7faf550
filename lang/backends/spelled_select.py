"""Choosing one of several texts where options cannot be scored: the model spells one under a constraint."""

import math
from collections.abc import Sequence

from ramet.lang.backends.base import SelectRequest, SelectResult
from ramet.lang.backends.transcript import Answers, Transcript
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import Choice, InvalidRequestError, RequestStats, SamplingParams

SPELLED_NORMALIZATIONS = ("token_length", "greedy")
WRAPPING_TOKENS = 64
"""For what a constraint may wrap an option in."""


def check_select(name: str, request: SelectRequest, known: Sequence[str]) -> None:
    """Raises InvalidRequestError for options that cannot be chosen, UnsupportedError for a normalization that
    cannot be computed; ``name`` is the backend's."""
    if not request.options or not all(request.options):
        raise InvalidRequestError("select needs at least one option, and no empty one", field="choices")
    if request.normalization not in known:
        raise UnsupportedError(
            f"{name} cannot choose by {request.normalization!r}; it can by {', '.join(known)}"
        )


async def spelled_select(
    answers: Answers, name: str, transcript: Transcript, request: SelectRequest, *, tells_logprobs: bool
) -> SelectResult:
    """The option that the model spells, token by token the most probable one that some option has.

    Its score is the log probability of its tokens, as far as they are told; the scores of the others are not
    known, and minus infinity. A temperature draws tokens instead.
    """
    check_select(name, request, SPELLED_NORMALIZATIONS)
    params = SamplingParams(
        # No option has more tokens than bytes.
        max_tokens=max(len(option.encode()) for option in request.options) + WRAPPING_TOKENS,
        temperature=request.temperature,
        seed=request.seed,
        grammar=Choice(request.options),
        logprobs=0 if tells_logprobs else None,
    )
    text = ""
    logprobs: list[float] = []
    stats: RequestStats | None = None
    stream = answers.generate(transcript, params, tag=request.tag, priority=request.priority, offer=None)
    async for delta in stream:
        text += delta.text
        logprobs += [one.chosen.logprob for one in delta.logprobs or ()]
        stats = delta.stats or stats
    if text not in request.options:
        raise GenerationError(f"{name} was held to the options, and answered {text[:80]!r}")
    index = request.options.index(text)
    scores = [-math.inf] * len(request.options)
    scores[index] = math.fsum(logprobs)
    token_logprobs: list[tuple[float, ...]] = [()] * len(request.options)
    token_logprobs[index] = tuple(logprobs)
    return SelectResult(
        index=index, option=text, scores=tuple(scores), token_logprobs=tuple(token_logprobs), stats=stats
    )
