"""GGUF files of every architecture against the checkpoint they were written from, and damaged files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.runtime.models.gguf_config import config_from_gguf
from ramet.runtime.models.loading.gguf_file import GgufTensors, open_gguf, split_paths
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError
from tests.runtime.models.loading.tiny_gguf import finish, tiny_llama, write_gguf

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeTiny

CASES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"tie_word_embeddings": False, "num_key_value_heads": 4},
    "MistralForCausalLM": {"sliding_window": None, "head_dim": 8},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {"head_dim": 8},
    "Qwen3MoeForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 8,
    },
    "Gemma2ForCausalLM": {"head_dim": 16, "sliding_window": 8},
    "Gemma3ForCausalLM": {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 7},
}


def read(path: Path) -> dict[str, Tensor]:
    model = open_gguf(split_paths(path))
    return dict(GgufTensors(model, config_from_gguf(model.metadata, model.tensor_names)))


@pytest.mark.parametrize("architecture", CASES)
def test_tensors_come_back_as_the_checkpoint_had_them(
    architecture: str, make_tiny: "MakeTiny", tmp_path: Path
) -> None:
    tiny = make_tiny(architecture, CASES[architecture])
    write_gguf(tmp_path / "m.gguf", {**tiny.hf_config, "architectures": [architecture]}, tiny.tensors)
    got = read(tmp_path / "m.gguf")
    gemma = "Gemma" in architecture
    seen = set()
    for name, expected in tiny.tensors.items():
        if name == "lm_head.weight" and tiny.config.tie_embeddings:
            assert name not in got
        elif name.endswith(".gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            parts = [f"{prefix}{part}.weight" for part in ("gate_proj", "up_proj")]
            assert torch.equal(torch.cat([got[part] for part in parts], dim=1), expected)
            seen |= set(parts)
        else:
            ours = name if name in got else f"{name}.weight"
            assert torch.equal(got[ours], expected + 1 if gemma and name.endswith("norm.weight") else expected)
            seen.add(ours)
    assert seen == got.keys()


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0, Kind.F16, Kind.BF16], ids=lambda kind: kind.name)
def test_quantised_matrices_are_decoded_under_their_names(kind: Kind, tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "m.gguf", config, tensors, lambda _: kind)
    got = read(tmp_path / "m.gguf")
    assert got.keys() == tensors.keys()
    for name, expected in tensors.items():
        error = (got[name].float() - expected).abs().max() / expected.abs().max()
        assert error < (0.15 if kind == Kind.Q4_0 else 0.01), name


def test_a_split_model_is_read_from_any_of_its_names(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "m.gguf", config, tensors, split_max_tensors=5)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    assert split_paths(parts[1]) == tuple(parts)
    got = read(parts[0])
    assert all(torch.equal(got[name], tensors[name]) for name in tensors)
    assert got.keys() == tensors.keys()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "m.gguf", config, tensors, split_max_tensors=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    parts[1].unlink()
    with pytest.raises(ModelLoadError, match=parts[1].name):
        split_paths(parts[0])


def test_a_renamed_part_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "m.gguf", config, tensors, split_max_tensors=8)
    renamed = sorted(tmp_path.glob("*.gguf"))[0].rename(tmp_path / "whole.gguf")
    with pytest.raises(ModelLoadError, match="split into"):
        open_gguf((renamed,))


def test_parts_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "a.gguf", config, tensors, split_max_tensors=8)
    parts = sorted(tmp_path.glob("a-*.gguf"))
    with pytest.raises(ModelLoadError, match=r"is in .* too"):
        open_gguf((parts[0], parts[0], *parts[2:]))


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(
        tmp_path / "m.gguf",
        config,
        tensors,
        edit=lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(4, np.float32)),
    )
    with pytest.raises(UnsupportedModelError, match="attn_sinks"):
        read(tmp_path / "m.gguf")


def test_values_that_are_not_finite_are_damage(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    write_gguf(tmp_path / "m.gguf", config, tensors)
    with pytest.raises(ModelLoadError, match=r"m\.gguf: tensor 'blk\.1\.ffn_up\.weight' contains NaN"):
        read(tmp_path / "m.gguf")


def test_large_but_finite_values_are_taken(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    tensors["model.norm.weight"][:] = 3e38  # their sum overflows
    write_gguf(tmp_path / "m.gguf", config, tensors)
    assert torch.equal(read(tmp_path / "m.gguf")["model.norm.weight"], tensors["model.norm.weight"])


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, *tiny_llama())
    before = path.read_bytes()
    read(path)["model.norm.weight"].zero_()
    assert path.read_bytes() == before


def test_an_adapter_is_not_a_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_type("adapter")
    writer.add_tensor("x", np.zeros(4, np.float32))
    finish(writer)
    with pytest.raises(UnsupportedModelError, match="'adapter'"):
        open_gguf((tmp_path / "m.gguf",))


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    finish_without_tensors(writer)
    with pytest.raises(ModelLoadError, match="no tensors"):
        open_gguf((tmp_path / "m.gguf",))


def finish_without_tensors(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_what_is_no_file_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("once upon a time")
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path / "empty.gguf", "is empty"),
        (tmp_path / "text.gguf", "not a GGUF file"),
        (tmp_path / "text.gguf" / "below.gguf", "cannot be read"),
    ):
        with pytest.raises(ModelLoadError, match=message) as caught:
            open_gguf((path,))
        assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, *tiny_llama())
    path.chmod(0)
    with pytest.raises(ModelLoadError, match="permission denied"):
        open_gguf((path,))


def test_a_file_without_an_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.kv_data[0].pop("general.architecture")
    writer.add_tensor("x", np.zeros(4, np.float32))
    finish(writer)
    with pytest.raises(ModelLoadError, match=r"general\.architecture"):
        _ = open_gguf((tmp_path / "m.gguf",)).architecture


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, *tiny_llama(), lambda _: Kind.Q8_0)
    return path.read_bytes()


@settings(max_examples=60)
@given(st.data())
def test_damaged_data_gives_tensors_or_a_load_error(
    model_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(model_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.sampled_from([0, 1, 0x7C, 0x7F, 0xFF])
        )
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(
        damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) - 100, len(damaged) // 2]))]
    )
    try:
        tensors = read(path)
    except ModelLoadError:
        return
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
