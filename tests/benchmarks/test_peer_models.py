"""Weights by channel in int8, and the folder that vLLM reads."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.peer_models import per_channel_int8, write_int8


def test_the_product_of_levels_and_scales_is_the_weight() -> None:
    weight = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    levels, scales = per_channel_int8(weight)
    assert (levels.dtype, scales.shape) == (torch.int8, (5, 1))
    assert levels[:3].abs().amax(dim=1).tolist() == [127] * 3
    assert ((levels.float() * scales - weight).abs() <= scales / 2 + 1e-7).all()
    assert levels[3].abs().sum() == 0


def test_a_folder_in_int8(tmp_path: Path) -> None:
    source, folder = tmp_path / "fp32", tmp_path / "int8"
    source.mkdir()
    (source / "config.json").write_text('{"vocab_size": 7}')
    (source / "tokenizer.json").write_text("{}")
    weights = {
        "model.layers.0.mlp.up_proj.weight": torch.ones(3, 4),
        "model.embed_tokens.weight": torch.ones(7, 4),
    }
    save_file(weights, source / "model.safetensors")
    write_int8(source, folder)
    found = load_file(folder / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "model.layers.0.mlp.up_proj.weight": torch.int8,
        "model.layers.0.mlp.up_proj.weight_scale": torch.float32,
        "model.embed_tokens.weight": torch.float32,
    }
    config = json.loads((folder / "config.json").read_text())
    assert config["vocab_size"] == 7
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert (folder / "tokenizer.json").exists()
    assert json.loads((source / "config.json").read_text()) == {"vocab_size": 7}
