"""Rope of every layout, against the dictionaries that transformers makes of the same fields."""

import copy
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.models.config import RopeConfig
from ramet.runtime.models.config_fields import ConfigFields
from ramet.runtime.models.rope_config import ropes_from_hf
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

MAX_POSITIONS = 4096
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def ropes(local_theta: float | None = None, **fields: Any) -> tuple[RopeConfig, RopeConfig | None]:
    given_fields = ConfigFields({"max_position_embeddings": MAX_POSITIONS, **fields}, source="config.json of X")
    return ropes_from_hf(given_fields, theta=1e4 if local_theta is None else 1e6, local_theta=local_theta)


def rope(**fields: Any) -> RopeConfig:
    found, local = ropes(**fields)
    assert local is None
    return found


# -- The oracle ------------------------------------------------------------------------------------------------


def transformers_rope(parameters: dict[str, Any]) -> RopeConfig:
    """transformers' standardised parameters as our record, by the defaults of its modeling_rope_utils."""
    kind, theta = parameters["rope_type"], float(parameters["rope_theta"])
    original: Any = parameters.get("original_max_position_embeddings")
    match kind:
        case "default":
            return RopeConfig(theta=theta)
        case "linear":
            return RopeConfig(theta=theta, scaling="linear", factor=parameters["factor"])
        case "llama3":
            return RopeConfig(
                theta=theta,
                scaling="llama3",
                factor=parameters["factor"],
                original_max_positions=original,
                low_freq_factor=parameters["low_freq_factor"],
                high_freq_factor=parameters["high_freq_factor"],
            )
    assert kind == "yarn"
    return RopeConfig(
        theta=theta,
        scaling="yarn",
        factor=MAX_POSITIONS / original if parameters["factor"] is None else parameters["factor"],
        original_max_positions=original,
        beta_fast=parameters.get("beta_fast") or 32.0,
        beta_slow=parameters.get("beta_slow") or 1.0,
        attention_factor=parameters.get("attention_factor"),
        mscale=parameters.get("mscale"),
        mscale_all_dim=parameters.get("mscale_all_dim"),
        truncate=parameters.get("truncate", True),
    )


def standardised(class_name: str, fields: dict[str, Any]) -> dict[str, Any]:
    config_class = getattr(pytest.importorskip("transformers"), class_name)
    config = config_class(max_position_embeddings=MAX_POSITIONS, **copy.deepcopy(fields))
    config.standardize_rope_params()  # once more, as its frequencies do before they read them
    parameters: dict[str, Any] = config.rope_parameters
    return parameters


FACTOR = st.sampled_from([1.0, 2.0, 8.5])
ORIGINAL = st.sampled_from([256, 1000])
NAME = st.sampled_from(["rope_type", "type"])
LINEAR = st.tuples(NAME, FACTOR).map(lambda drawn: {drawn[0]: "linear", "factor": drawn[1]})
DEFAULT = NAME.map(lambda name: {name: "default"})
LLAMA3S = st.fixed_dictionaries(
    {**{name: st.just(value) for name, value in LLAMA3.items()}, "factor": FACTOR},
    optional={"original_max_position_embeddings": ORIGINAL},
)
YARNS = st.fixed_dictionaries(
    {"rope_type": st.just("yarn"), "factor": FACTOR},
    optional={
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": st.sampled_from([None, 20.0]),
        "beta_slow": st.just(2.0),
        "attention_factor": st.just(1.25),
        "mscale": st.just(0.7),
        "mscale_all_dim": st.just(0.4),
        "truncate": st.booleans(),
    },
)
PARAMETERS = DEFAULT | LINEAR | LLAMA3S | YARNS
THETA = st.sampled_from([500.0, 1e6])


@settings(max_examples=150)
@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "rope_theta": THETA,
            "rope_scaling": st.none() | PARAMETERS,
            "rope_parameters": st.tuples(PARAMETERS, THETA).map(
                lambda pair: {**pair[0], "rope_theta": pair[1]}
            ),
            "original_max_position_embeddings": st.just(512),
        },
    )
)
def test_one_rope_for_all_layers(fields: dict[str, Any]) -> None:
    assert rope(**fields) == transformers_rope(standardised("LlamaConfig", fields))


@settings(max_examples=150)
@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "rope_theta": THETA,
            "rope_local_base_freq": THETA,
            # Not by the older name "type": transformers puts it beside its own rope_type, which then wins.
            "rope_scaling": st.none() | FACTOR.map(lambda factor: {"rope_type": "linear", "factor": factor}),
            "rope_parameters": st.fixed_dictionaries(
                {
                    "full_attention": st.tuples(DEFAULT | LINEAR, THETA).map(
                        lambda pair: {**pair[0], "rope_theta": pair[1]}
                    )
                },
                optional={"sliding_attention": st.none() | DEFAULT | LINEAR},
            ),
        },
    )
)
def test_another_rope_for_sliding_layers(fields: dict[str, Any]) -> None:
    found, local = ropes(local_theta=1e4, **fields)
    expected = standardised("Gemma3TextConfig", fields)
    assert found == transformers_rope(expected["full_attention"])
    assert (local or found) == transformers_rope(expected["sliding_attention"])


# -- Case by case ----------------------------------------------------------------------------------------------


def test_nothing_given() -> None:
    assert ropes() == (RopeConfig(theta=1e4), None)
    assert ropes(local_theta=1e4) == (RopeConfig(theta=1e6), RopeConfig(theta=1e4))
    assert rope(rope_theta=None, rope_scaling=None, rope_parameters=None) == RopeConfig(theta=1e4)


def test_both_layouts_read_alike() -> None:
    for parameters in ({"type": "linear", "factor": 2}, LLAMA3, {"rope_type": "yarn", "factor": 4.0}):
        older = rope(rope_theta=5e5, rope_scaling=parameters)
        assert older == rope(rope_parameters={**parameters, "rope_theta": 5e5})
        assert older.theta == 5e5
    assert rope(rope_scaling={"type": "linear", "factor": 2}) == RopeConfig(scaling="linear", factor=2.0)


def test_equal_ropes_of_all_layers_are_one() -> None:
    same = {"rope_type": "default", "rope_theta": 7.0}
    nested = {"full_attention": same, "sliding_attention": same}
    assert ropes(local_theta=1e4, rope_parameters=nested) == (RopeConfig(theta=7.0), None)


def test_an_architecture_without_a_local_theta_may_give_parameters_by_layer_type() -> None:
    nested = {"full_attention": {"rope_theta": 7.0}, "sliding_attention": {"rope_theta": 9.0}}
    assert ropes(rope_parameters=nested) == (RopeConfig(theta=7.0), RopeConfig(theta=9.0))


def test_yarns_factor_follows_from_the_context_lengths() -> None:
    found = rope(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 1000})
    assert (found.factor, found.original_max_positions) == (4.096, 1000)


def test_the_context_length_before_scaling_beside_the_parameters_counts_first() -> None:
    scaling = {"rope_type": "yarn", "factor": 2.0}
    assert rope(rope_scaling=scaling).original_max_positions == MAX_POSITIONS
    inner = {**scaling, "original_max_position_embeddings": 256}
    assert rope(rope_scaling=inner).original_max_positions == 256
    assert rope(rope_scaling=inner, original_max_position_embeddings=512).original_max_positions == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope' is not implemented"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not implemented"),
        (
            {"rope_parameters": {"rope_type": "mrope", "mrope_section": [1]}},
            r"'mrope' .*\(implemented: default",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 3.0}}, "rope_scaling: alpha is not"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope_scaling: factor is not implemented"),
        ({"rope_scaling": {**LLAMA3, "beta_fast": 3.0}}, "beta_fast is not implemented"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5 .* is not implemented"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, r"rope_parameters: partial_rotary_factor=0\.25"),
        (
            {"rope_parameters": {"full_attention": {}, "chunked_attention": {}}},
            "rope_parameters: chunked_attention is not implemented",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "dynamic"}}},
            "rope_parameters, sliding_attention: rope type 'dynamic'",
        ),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        ropes(**fields)
    assert str(caught.value).startswith("config.json of X")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": 0}, "rope_theta is 0; expected a number above 0"),
        ({"rope_theta": math.inf}, "rope_theta is inf"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4'"),
        ({"rope_scaling": 3}, "rope_scaling is 3; expected a mapping"),
        ({"rope_scaling": {"rope_type": 3}}, "rope_scaling: rope_type is 3; expected a string"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: the field factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2.0}}, r"factor is -2\.0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, r"high_freq_factor 1\.0 must be above .* 1\.0"),
        ({"rope_scaling": {"rope_type": "yarn", "truncate": 1}}, "truncate is 1; expected true or false"),
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 1.5}, "is 1.5; expected a whole number"),
        ({"rope_parameters": {"full_attention": "x"}}, "full_attention is 'x'; expected a mapping"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        ropes(**fields)
    assert not isinstance(caught.value, UnsupportedModelError)
