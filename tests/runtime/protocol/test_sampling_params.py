"""SamplingParams: what is accepted, what is refused, and that the refusal names field, value and range."""

import math
from typing import Any

import msgspec
import numpy
import pytest

from ramet.runtime.protocol import Choice, InvalidRequestError, JsonSchema, SamplingParams

BAD: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("max_tokens", "12"),
    ("min_tokens", -1),
    ("min_tokens", 129),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", 101.0),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("top_k", -2),
    ("top_k", 0.5),
    ("min_p", -0.01),
    ("min_p", 1.1),
    ("frequency_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("presence_penalty", math.inf),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.nan),
    ("seed", 2**63),
    ("seed", 1.0),
    ("n", 0),
    ("n", 1025),
    ("n", 2**70),
    ("max_tokens", 2**63),
    ("min_tokens", 2**63),
    ("top_k", 2**70),
    ("prompt_logprobs_start", 2**63),
    ("stop_token_ids", (2**70,)),
    ("logit_bias", {2**70: 1.0}),
    ("logit_bias", {1: 10**400}),
    ("temperature", 10**400),
    ("logprobs", -1),
    ("logprobs", 101),
    ("prompt_logprobs", -1),
    ("prompt_logprobs_start", -1),
    ("stop", ("",)),
    ("stop", ""),
    ("stop", None),
    ("stop", {"END"}),
    ("stop", (3,)),
    ("stop", ("x" * 1025,)),
    ("stop", ("x",) * 65),
    ("stop_regex", ("",)),
    ("stop_regex", ("a*",)),
    ("stop_regex", ("(",)),
    ("stop_regex", ("(?:" * 101 + "a" + ")" * 101,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", (1.0,)),
    ("stop_token_ids", {1}),
    ("stop_token_ids", True),
    ("min_tokens", None),
    ("temperature", None),
    ("top_k", None),
    ("n", None),
    ("prompt_logprobs_start", None),
    ("max_tokens", numpy.float64(3)),
    ("max_tokens", numpy.True_),
    ("temperature", numpy.float32("nan")),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {1: 101.0}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {"1": 1.0}),
    ("logit_bias", [1]),
    ("ignore_eos", 1),
    ("skip_special_tokens", None),
    ("include_stop", "yes"),
    ("grammar", "regex"),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{field}={str(value)[:20]}" for field, value in BAD])
def test_bad_value_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)
    assert str(caught.value).startswith(field) or field == "stop_regex"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", None),
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_k", -1),
        ("min_p", 0),
        ("seed", -1),
        ("logprobs", 0),
        ("stop", ("END", "\n")),
        ("stop_regex", (r"\d+",)),
        ("logit_bias", {0: -100, 5: 100.0}),
        ("repetition_penalty", 1.3),
        ("grammar", Choice(("a",))),
    ],
)
def test_good_value_is_kept(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)  # type: ignore[call-arg]


def test_it_is_frozen_and_travels_whole() -> None:
    params = SamplingParams(
        temperature=0.3, stop=("x",), logit_bias={3: -1.5}, grammar=JsonSchema.of({"type": "object"}), seed=-5
    )
    with pytest.raises(AttributeError):
        params.seed = 1  # type: ignore[misc]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_the_wire_is_validated_as_well() -> None:
    payload = msgspec.msgpack.encode({"temperature": -1.0})
    with pytest.raises(msgspec.ValidationError, match=r"temperature is -1\.0"):
        msgspec.msgpack.decode(payload, type=SamplingParams)


def test_long_values_are_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(stop="y" * 100_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, True), (0.01, False)])
def test_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy


def test_has_penalties() -> None:
    assert not SamplingParams().has_penalties
    assert SamplingParams(repetition_penalty=1.1).has_penalties
    assert SamplingParams(frequency_penalty=-0.1).has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties


def test_nested_groups_are_taken_up_to_a_depth_that_any_stack_has_room_for() -> None:
    pattern = "(?:" * 100 + r"a\(" + ")" * 100
    assert SamplingParams(stop_regex=(pattern,)).stop_regex == (pattern,)
    with pytest.raises(InvalidRequestError, match="101 groups"):
        SamplingParams(stop_regex=(f"({pattern})",))


def test_numbers_of_numpy_become_pythons() -> None:
    given: dict[str, Any] = {
        "max_tokens": numpy.int64(3),
        "temperature": numpy.float64(0.5),
        "top_p": numpy.float32(0.5),
        "seed": numpy.uint8(7),
        "stop_token_ids": (numpy.int32(2),),
        "logit_bias": {numpy.int64(5): numpy.float32(1.5)},
    }
    params = SamplingParams(**given)
    assert params == SamplingParams(
        max_tokens=3, temperature=0.5, top_p=0.5, seed=7, stop_token_ids=(2,), logit_bias={5: 1.5}
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("stop", "END", ("END",)),
        ("stop", ["END", "."], ("END", ".")),
        ("stop_regex", "a+", ("a+",)),
        ("stop_token_ids", 2, (2,)),
        ("stop_token_ids", [2, 3], (2, 3)),
    ],
)
def test_a_list_or_a_single_stop_is_taken_for_a_tuple(
    field: str, value: Any, expected: tuple[Any, ...]
) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == expected
