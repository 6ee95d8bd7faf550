"""Scoring the options of a select by text completions that echo their prompt, on servers whose tokens are not
known here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.lang.backends.base import SelectRequest, SelectResult
from ramet.lang.backends.local_select import OptionPlan, choose, greedy_choice, normalize
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError, RequestStats

ECHO_NORMALIZATIONS = ("token_length", "greedy", "sum")


@dataclass(frozen=True, slots=True)
class Echoed:
    """A text's tokens as a server spells them, with their log probabilities; None: the first token's."""

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]

    @classmethod
    def of(cls, name: str, text: str, choice: dict[str, Any]) -> "Echoed":
        """From a choice that echoes ``text`` and goes on with what was generated behind it.

        Raises:
            GenerationError: the tokens do not spell the text; ``name`` is the server's.
        """
        said = choice.get("logprobs") or {}
        tokens: list[str] = list(said.get("tokens") or ())
        values: list[float | None] = list(said.get("token_logprobs") or ())
        spelled = "".join(tokens)
        # What stands in front is the token that begins a text.
        start = spelled.find(text)
        first = _token_at(tokens, start)
        last = _token_at(tokens, start + len(text))
        if start < 0 or first is None or last is None or len(values) < last:
            raise GenerationError(
                f"{name} echoes the prompt with tokens that do not spell it, so options cannot be scored"
            )
        return cls(tuple(tokens[first:last]), tuple(values[first:last]))


def echo_fields(prompt: str, options: Sequence[str]) -> dict[str, Any]:
    """The fields of a text completion that scores the prompt alone and with each option.

    One token is generated behind each, since not every server takes 0, and is left out again.
    """
    if not prompt:
        raise UnsupportedError(
            "a select at the very beginning has nothing to be scored behind; put a text in front"
        )
    texts = [prompt, *(prompt + option for option in options)]
    return {"prompt": texts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}


def echo_result(name: str, prompt: str, request: SelectRequest, answer: dict[str, Any]) -> SelectResult:
    """The result as ``local_select`` defines it, with the server's tokens."""
    texts = [prompt, *(prompt + option for option in request.options)]
    choices = sorted(answer.get("choices") or (), key=lambda choice: choice["index"])
    if len(choices) != len(texts):
        raise GenerationError(f"{name} answered {len(texts)} prompts with {len(choices)} choices")
    alone, *extended = [Echoed.of(name, text, choice) for text, choice in zip(texts, choices, strict=True)]
    plan, scored = _plan(prompt, request.options, alone, extended)
    scores = normalize(plan, request.normalization, scored)
    of_options = plan.option_logprobs(scored)
    if request.normalization == "greedy" and request.temperature <= 0:
        index = greedy_choice(plan.options, of_options)
    else:
        index = choose(scores, temperature=request.temperature, seed=request.seed)
    usage = answer.get("usage") or {}
    return SelectResult(
        index=index,
        option=request.options[index],
        scores=tuple(scores),
        token_logprobs=tuple(tuple(values) for values in of_options),
        stats=RequestStats(
            num_prompt_tokens=usage.get("prompt_tokens") or 0,
            num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        ),
    )


def _plan(
    prompt: str, options: Sequence[str], alone: Echoed, extended: Sequence[Echoed]
) -> tuple[OptionPlan, list[list[float]]]:
    """The plan of ``local_select``, with a number for each token's text, and the logprobs of its
    continuations."""
    numbers: dict[str, int] = {}
    start = min(_num_alike(alone.tokens, one.tokens) for one in extended)
    if not start:
        raise UnsupportedError("the prompt is part of the options' first token; put a longer text in front")

    def numbered(tokens: Sequence[str]) -> list[int]:
        return [numbers.setdefault(token, len(numbers)) for token in tokens]

    prompt_end = numbered(alone.tokens[start:])
    ends = [numbered(one.tokens[start:]) for one in extended]
    scored = {tuple(end): _known(one.logprobs[start:]) for end, one in zip(ends, extended, strict=True)}
    if prompt_end and not any(end[: len(prompt_end)] == prompt_end for end in ends):
        scored[tuple(prompt_end)] = _known(alone.logprobs[start:])
    num_own = [_num_own(len(prompt), one.tokens) for one in extended]
    for option, count in zip(options, num_own, strict=True):
        if not count:
            raise InvalidRequestError(
                f"the option {option!r} has no token of its own; remove it", field="choices"
            )
    plan = OptionPlan([], [list(tokens) for tokens in scored], ends, num_own, prompt_end)
    return plan, list(scored.values())


def _known(logprobs: Sequence[float | None]) -> list[float]:
    return [-math.inf if logprob is None else logprob for logprob in logprobs]


def _num_alike(left: Sequence[str], right: Sequence[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _num_own(num_chars: int, tokens: Sequence[str]) -> int:
    """How many of the tokens reach beyond the first ``num_chars`` characters."""
    end, count = 0, 0
    for token in tokens:
        end += len(token)
        count += end > num_chars
    return count


def _token_at(tokens: Sequence[str], num_chars: int) -> int | None:
    """The token that begins after so many characters; None: none begins there."""
    end = 0
    for index, token in enumerate(tokens):
        if end == num_chars and token:
            return index
        end += len(token)
    return len(tokens) if end == num_chars else None
