"""Which architectures run, and how."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.models.hf_config import IMPLEMENTED_ARCHITECTURES, architecture_of
from ramet.runtime.protocol import UnsupportedModelError


def support_of(hf_config: Mapping[str, object]) -> Literal["implemented", "transformers"]:
    """How the model of a config.json is to be run.

    "implemented": ``config_from_hf``, ``prepare_weights`` and ``build_model``. "transformers": try
    ``load_transformers_model``, which refuses by name what cannot run. Raises ModelLoadError where config.json
    names no architecture.
    """
    return "implemented" if architecture_of(hf_config) in IMPLEMENTED_ARCHITECTURES else "transformers"


def build_model(
    config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> DecoderModel:
    """weights, dtype: of ``prepare_weights``. Raises UnsupportedModelError for an architecture without
    implementation."""
    if config.architecture not in IMPLEMENTED_ARCHITECTURES:
        known = ", ".join(sorted(IMPLEMENTED_ARCHITECTURES))
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not implemented (implemented: {known})"
        )
    return DecoderModel(config, weights, device, dtype)
