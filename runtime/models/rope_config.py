"""RopeConfig from the layouts in which checkpoints describe rotary embedding."""

import msgspec

from ramet.runtime.models.config import RopeConfig
from ramet.runtime.models.config_fields import ConfigFields
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

_SHARED_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_KEYS = {
    "default": _SHARED_KEYS,
    "linear": _SHARED_KEYS | {"factor"},
    "llama3": _SHARED_KEYS
    | {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": _SHARED_KEYS
    | {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "finetuned",
    },
}
_LAYER_TYPES = ("full_attention", "sliding_attention")


def ropes_from_hf(
    fields: ConfigFields, *, theta: float, local_theta: float | None
) -> tuple[RopeConfig, RopeConfig | None]:
    """(rope, rope of the sliding layers where it differs) of a config.json.

    theta, local_theta: the architecture's values where config.json has none; local_theta is None for
    architectures whose layers share one rope. Reads ``rope_parameters``, flat or nested by layer type, and the
    older ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq``. Where both layouts are given
    ``rope_scaling`` wins, as in transformers.
    """
    fields.refuse_unless("partial_rotary_factor", (1, 1.0), "rotating a part of each head")
    theta = fields.number("rope_theta", theta)
    scaling = fields.part("rope_scaling")
    parameters = fields.part("rope_parameters")
    nested = parameters is not None and any(name in parameters.given() for name in _LAYER_TYPES)
    if not nested:
        rope = _rope(fields, scaling or parameters, theta)
        if local_theta is None:
            return rope, None
        return rope, RopeConfig(theta=fields.number("rope_local_base_freq", local_theta))
    assert parameters is not None
    _refuse_unknown(parameters, frozenset(_LAYER_TYPES))
    rope = _rope(fields, scaling or parameters.part("full_attention"), theta)
    if (full := parameters.part("full_attention")) is not None and scaling is not None:
        rope = msgspec.structs.replace(rope, theta=full.number("rope_theta", theta))
    local = _rope(
        fields,
        parameters.part("sliding_attention"),
        fields.number("rope_local_base_freq", local_theta or theta),
    )
    return rope, None if local == rope else local


def _rope(fields: ConfigFields, parameters: ConfigFields | None, theta: float) -> RopeConfig:
    if parameters is None:
        return RopeConfig(theta=theta)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in _KEYS:
        known = ", ".join(sorted(_KEYS))
        raise UnsupportedModelError(
            f"{parameters.source}: rope type {kind!r} is not implemented (implemented: {known})"
        )
    _refuse_unknown(parameters, _KEYS[kind])
    parameters.refuse_unless("partial_rotary_factor", (1, 1.0), "rotating a part of each head")
    theta = parameters.number("rope_theta", theta)
    match kind:
        case "linear":
            return RopeConfig(theta=theta, scaling="linear", factor=parameters.number("factor"))
        case "llama3":
            return _llama3(fields, parameters, theta)
        case "yarn":
            return _yarn(fields, parameters, theta)
        case _:
            return RopeConfig(theta=theta)


def _llama3(fields: ConfigFields, parameters: ConfigFields, theta: float) -> RopeConfig:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if high <= low:
        raise ModelLoadError(
            f"{parameters.source}: high_freq_factor {high} must be above low_freq_factor {low}"
        )
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=parameters.number("factor"),
        original_max_positions=_original_positions(fields, parameters),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(fields: ConfigFields, parameters: ConfigFields, theta: float) -> RopeConfig:
    original = _original_positions(fields, parameters)
    factor = parameters.optional_number("factor")
    return RopeConfig(
        theta=theta,
        scaling="yarn",
        factor=factor if factor is not None else fields.integer("max_position_embeddings") / original,
        original_max_positions=original,
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        attention_factor=parameters.optional_number("attention_factor"),
        mscale=parameters.optional_number("mscale"),
        mscale_all_dim=parameters.optional_number("mscale_all_dim"),
        truncate=parameters.flag("truncate", True),
    )


def _original_positions(fields: ConfigFields, parameters: ConfigFields) -> int:
    """The context length before scaling: beside the rope parameters first, as transformers has it."""
    outer = fields.optional_integer("original_max_position_embeddings")
    inner = parameters.optional_integer("original_max_position_embeddings")
    return outer or inner or fields.integer("max_position_embeddings")


def _refuse_unknown(parameters: ConfigFields, known: frozenset[str]) -> None:
    if unknown := sorted(parameters.given() - known):
        raise UnsupportedModelError(f"{parameters.source}: {unknown[0]} is not implemented")
