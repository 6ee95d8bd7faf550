"""SamplingParams: how one request is sampled and when it stops."""

import numbers
import re
from types import UnionType
from typing import Any

import msgspec

from ramet.runtime.protocol.errors import InvalidRequestError
from ramet.runtime.protocol.grammar_spec import GrammarSpec
from ramet.runtime.protocol.nesting import MAX_GROUP_NESTING, groups_nested

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 100
MAX_N = 1024
MAX_INT = 2**63 - 1
"""What a message of 64 bits takes."""
GREEDY_TEMPERATURE = 1e-5

_INT_FIELDS = (
    "max_tokens",
    "min_tokens",
    "top_k",
    "seed",
    "n",
    "logprobs",
    "prompt_logprobs",
    "prompt_logprobs_start",
)
_OPTIONAL_FIELDS = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
_FLOAT_FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_STOP_FIELDS = ("stop", "stop_token_ids", "stop_regex")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, validated on construction, and handed on whole from the caller to the sampler.

    Numbers of other libraries (numpy's) are turned into Python's. For the three stop fields a list, or a single
    entry, is taken for a tuple.

    Raises:
        InvalidRequestError: a value is out of range; the message names the field, the value and the range.
    """

    max_tokens: int | None = 128
    """Most tokens to generate; None: until the context (or the KV pool) is full."""
    min_tokens: int = 0
    """No stop of any kind is honoured before this many tokens were generated."""
    temperature: float = 1.0
    """0 is greedy: the most probable token, ties to the lowest id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 (or -1): off."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    """OpenAI's definition: subtracted per occurrence in the output."""
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """CTRL's definition (arXiv 1909.05858), over prompt and output."""
    logit_bias: dict[int, float] | None = None
    """Token id -> value in [-100, 100] added to its logit."""
    seed: int | None = None
    """Same request and seed, same tokens, whatever runs beside it. None: drawn on arrival."""
    n: int = 1
    """Number of answers; they share the prompt's computation."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    """Generation stops where one of these is found in the output's text."""
    include_stop: bool = False
    """Keep the text that stopped the output at its end."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: off. k: log probability of each output token and of the k most probable ones."""
    prompt_logprobs: int | None = None
    """The same for the prompt; the first prompt token has none."""
    prompt_logprobs_start: int = 0
    """First prompt position whose log probability is wanted; the prefix before it may come from the cache."""
    skip_special_tokens: bool = True
    grammar: GrammarSpec | None = None
    close_on_length: bool = False
    """With a JsonSchema: a document that max_tokens (or the context's end) would cut is closed instead, by a
    short valid ending that fits. finish_reason is LENGTH all the same."""

    def __post_init__(self) -> None:
        self._normalise()
        _check_int("max_tokens", self.max_tokens, 1, None)
        _check_int("min_tokens", self.min_tokens, 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _fail("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_int("top_k", self.top_k, -1, None)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _check_type(
            "logit_bias", self.logit_bias, dict | None, "a dict of token id to a number from -100 to 100"
        )
        for token_id, bias in (self.logit_bias or {}).items():
            _check_int("logit_bias key", token_id, 0, None, field="logit_bias")
            _check_float(f"logit_bias[{token_id}]", bias, -100.0, 100.0, field="logit_bias")
        _check_int("seed", self.seed, -MAX_INT - 1, MAX_INT)
        _check_int("n", self.n, 1, MAX_N)
        _check_int("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        _check_int("prompt_logprobs_start", self.prompt_logprobs_start, 0, None)
        _check_stops("stop", self.stop)
        _check_stops("stop_regex", self.stop_regex)
        for pattern in self.stop_regex:
            _check_pattern(pattern)
        _check_type("stop_token_ids", self.stop_token_ids, tuple, "a tuple or list of token ids")
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, 0, None)
        for field in ("include_stop", "ignore_eos", "skip_special_tokens", "close_on_length"):
            _check_type(field, getattr(self, field), bool, "true or false")
        _check_type(
            "grammar",
            self.grammar,
            GrammarSpec | None,
            "a JsonSchema, Regex, Ebnf, Choice, StructuralTag or Prefix",
        )

    def _normalise(self) -> None:
        for fields, plain in (
            (_INT_FIELDS, _plain_int),
            (_FLOAT_FIELDS, _plain_float),
            (_STOP_FIELDS, _plain_stops),
        ):
            for field in fields:
                value = getattr(self, field)
                if (other := plain(value)) is not value:
                    msgspec.structs.force_setattr(self, field, other)
        if isinstance(self.logit_bias, dict):
            biases = {_plain_int(key): _plain_float(bias) for key, bias in self.logit_bias.items()}
            msgspec.structs.force_setattr(self, "logit_bias", biases)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0


def _plain_int(value: Any) -> Any:
    """An int where ``value`` is an integer of any kind; anything else as it is."""
    if type(value) in (int, bool) or not isinstance(value, numbers.Integral):
        return value
    return int(value)


def _plain_float(value: Any) -> Any:
    """A float or int where ``value`` is a real number of any kind; anything else as it is."""
    if type(value) in (int, float, bool) or not isinstance(value, numbers.Real):
        return value
    return float(value)


def _plain_stops(value: Any) -> Any:
    """A tuple where ``value`` is a list or one entry; anything else as it is."""
    if isinstance(value, list | tuple):
        return tuple(_plain_int(item) for item in value)
    if type(value) is not bool and isinstance(value, str | numbers.Integral):
        return (_plain_int(value),)
    return value


def _fail(name: str, value: object, expected: str, *, field: str | None = None) -> None:
    """``field``: the parameter's name, where ``name`` says more than that."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise InvalidRequestError(f"{name} is {shown}; it must be {expected}", field=field or name)


def _check_type(field: str, value: object, kind: type | UnionType, expected: str) -> None:
    if not isinstance(value, kind):
        _fail(field, value, expected)


def _check_int(name: str, value: object, low: int, high: int | None, *, field: str | None = None) -> None:
    if value is None and name in _OPTIONAL_FIELDS:
        return
    bounds = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        _fail(name, value, bounds, field=field)
    elif value > (MAX_INT if high is None else high):
        _fail(name, value, f"an integer from {low} to {MAX_INT if high is None else high}", field=field)


def _check_float(
    name: str, value: object, low: float, high: float, *, above: bool = False, field: str | None = None
) -> None:
    bounds = f"a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN is in no range; an integer may be too large for a float, but not to be compared with one.
    if not is_number or not low <= value <= high or (above and value == low):  # type: ignore[operator]
        _fail(name, value, bounds, field=field)


def _check_stops(field: str, stops: object) -> None:
    if not isinstance(stops, tuple) or not all(isinstance(stop, str) for stop in stops):
        _fail(field, stops, "a tuple or list of strings")
        return
    if len(stops) > MAX_STOPS:
        _fail(field, f"{len(stops)} entries", f"at most {MAX_STOPS} entries")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            _fail(field, stop, f"1 to {MAX_STOP_CHARS} characters long")


def _check_pattern(pattern: str) -> None:
    if (depth := groups_nested(pattern)) > MAX_GROUP_NESTING:
        _fail("stop_regex", f"{depth} groups inside of one another", f"at most {MAX_GROUP_NESTING} deep")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequestError(
            f"stop_regex {pattern[:80]!r} is not a valid regular expression: {error}", field="stop_regex"
        ) from None
    if compiled.match("") is not None:
        _fail("stop_regex", pattern, "a pattern that does not match the empty string")
