"""The keyword arguments of ``gen`` and of ``run``, spelled once, and the SamplingParams that they become."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from ramet.runtime.protocol import InvalidRequestError, SamplingParams


class SamplingOptions(TypedDict, total=False):
    """Fields of SamplingParams as people write them: one string where there may be several, lists for tuples.
    ``max_tokens`` stands apart, as an argument of its own.

    ``return_logprob``, ``top_logprobs_num`` and ``logprob_start_len`` are SGLang's words for ``logprobs``,
    ``prompt_logprobs`` and ``prompt_logprobs_start``.
    """

    min_tokens: int | None
    n: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: int | Sequence[int] | None
    stop_regex: str | Sequence[str] | None
    include_stop: bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    ignore_eos: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    prompt_logprobs_start: int | None
    return_logprob: bool | None
    top_logprobs_num: int | None
    logprob_start_len: int | None
    return_text_in_logprobs: bool | None
    skip_special_tokens: bool | None
    close_on_length: bool | None


SAMPLING_OPTIONS = frozenset(SamplingOptions.__annotations__) | {"max_tokens"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """SamplingParams, and which of their fields were given rather than left at their defaults."""

    params: SamplingParams = field(default_factory=SamplingParams)
    given: frozenset[str] = frozenset()

    def over(self, defaults: "Sampling") -> "Sampling":
        """These where they were given, else the defaults'. Raises InvalidRequestError where both do not fit."""
        own = {field: getattr(self.params, field) for field in self.given}
        return Sampling(msgspec.structs.replace(defaults.params, **own), self.given | defaults.given)


def sampling(options: Mapping[str, Any], **more: Any) -> Sampling:
    """Options that are None count as not given. ``more`` are fields that take part as they are.

    Raises:
        InvalidRequestError: an option that there is not, with the nearest name; or a value out of range.
    """
    for name in options:
        if name not in SAMPLING_OPTIONS:
            raise InvalidRequestError(unknown_option(name, SAMPLING_OPTIONS), field=name)
    given = {name: _as_field(name, value) for name, value in options.items() if value is not None} | more
    _take_logprob_words(given)
    # max_tokens=None is a choice: until the context is full. It is the one option of which None has a meaning.
    if "max_tokens" in options:
        given["max_tokens"] = options["max_tokens"]
    # The default of max_tokens is the run's business; a min_tokens above it must not be refused here.
    params = SamplingParams(**({"max_tokens": None} | given))
    return Sampling(params, frozenset(given))


def _take_logprob_words(given: dict[str, Any]) -> None:
    """SGLang's words for log probabilities become fields of SamplingParams."""
    if given.pop("return_text_in_logprobs", False):
        raise InvalidRequestError(
            "return_text_in_logprobs is True; log probabilities have token ids: leave it out, and decode the "
            "ids where the text is needed",
            field="return_text_in_logprobs",
        )
    wanted = given.pop("return_logprob", None)
    words = {name: given.pop(name) for name in ("top_logprobs_num", "logprob_start_len") if name in given}
    for name, value in words.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            raise InvalidRequestError(
                f"{name} is {value!r}; it must be a whole number of at least 0", field=name
            )
        if wanted is False and value > 0:
            raise InvalidRequestError(
                f"{name} is {value!r} and return_logprob is False; leave one out", field=name
            )
    if not wanted and not words:
        return
    num_top, start = words.get("top_logprobs_num", 0), words.get("logprob_start_len", -1)
    if wanted is not False:
        given.setdefault("logprobs", num_top)
        if start >= 0:
            given.setdefault("prompt_logprobs", num_top)
            given.setdefault("prompt_logprobs_start", start)


def unknown_option(name: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"there is no option {name!r}; {hint}"


def _as_field(name: str, value: Any) -> Any:
    if name in ("stop", "stop_regex"):
        return (value,) if isinstance(value, str) else _as_tuple(name, value, "a string or a list of strings")
    if name == "stop_token_ids":
        return (value,) if isinstance(value, int) else _as_tuple(name, value, "a token id or a list of them")
    if name == "logit_bias" and isinstance(value, Mapping):
        return dict(value)
    return value


def _as_tuple(name: str, value: object, expected: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidRequestError(f"{name} is {value!r}; it must be {expected}", field=name)
    return tuple(sorted(value)) if isinstance(value, set | frozenset) else tuple(value)
