import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ramet.runtime.models.loading.hf_folder import model_files, open_hf_folder, weight_files
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError
from tests.runtime.models.loading.tiny_folder import write_folder
from tests.runtime.models.loading.tiny_gguf import tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", *tiny_llama(), num_shards=3)
    return tmp_path / "model"


def edit_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_index(folder: Path, **entries: str) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= entries
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("num_shards", [1, 3])
def test_tensors_are_read_by_name(num_shards: int, tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_folder(tmp_path, config, tensors, num_shards=num_shards)
    model = open_hf_folder(tmp_path)
    assert model.config == config
    assert model.tensors.keys() == tensors.keys()
    assert len(model.tensors) == len(tensors)
    assert all(torch.equal(model.tensors[name], tensors[name]) for name in tensors)
    assert "no such tensor" not in model.tensors


def test_dtypes_are_kept(tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_folder(tmp_path, config, {name: tensor.bfloat16() for name, tensor in tensors.items()})
    assert {tensor.dtype for tensor in open_hf_folder(tmp_path).tensors.values()} == {torch.bfloat16}


def test_what_transformers_saves_in_shards_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config, _ = tiny_llama()
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(weight_files(tmp_path)) > 1
    tensors = open_hf_folder(tmp_path).tensors
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_a_single_file_of_another_name_will_do(tmp_path: Path) -> None:
    write_folder(tmp_path, *tiny_llama())
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert weight_files(tmp_path) == (tmp_path / "weights.safetensors",)
    save_file({"x": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(ModelLoadError, match=r"2 safetensors files but no model\.safetensors\.index\.json"):
        weight_files(tmp_path)


def test_model_files_are_all_that_matters(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("x")
    (folder / "README.md").write_text("x")
    names = [file.name for file in model_files(folder)]
    assert "README.md" not in names
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < set(names)
    assert sum(name.endswith(".safetensors") for name in names) == 3
    assert model_files(folder) == model_files(folder)


def test_pickles_are_refused_by_name_with_the_remedy(tmp_path: Path) -> None:
    write_folder(tmp_path, *tiny_llama())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin .*pickle.*save_pretrained"):
        open_hf_folder(tmp_path)


def test_safetensors_beside_a_pickle_are_taken(tmp_path: Path) -> None:
    write_folder(tmp_path, *tiny_llama())
    (tmp_path / "pytorch_model.bin").write_bytes(b"evil")
    assert weight_files(tmp_path) == (tmp_path / "model.safetensors",)


def test_no_weights_at_all(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    with pytest.raises(ModelLoadError, match="has no weights"):
        open_hf_folder(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard = weight_files(folder)[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=f"{shard.name} is missing"):
        open_hf_folder(folder)


def test_an_index_that_names_a_missing_tensor(folder: Path) -> None:
    edit_index(folder, **{"model.layers.9.x": weight_files(folder)[0].name})
    with pytest.raises(ModelLoadError, match=r"'model\.layers\.9\.x' is in .*, but it is not"):
        open_hf_folder(folder)


def test_an_index_that_names_the_wrong_shard(folder: Path) -> None:
    first, second = weight_files(folder)[:2]
    name = next(iter(open_hf_folder(folder).tensors))
    edit_index(folder, **{name: second.name})
    with pytest.raises(ModelLoadError, match=f"{second.name}, but it is not"):
        open_hf_folder(folder)
    assert first != second


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "", "..", "pytorch_model.bin"]
)
def test_an_index_cannot_reach_outside_its_folder(name: str, folder: Path) -> None:
    edit_index(folder, **{"model.norm.weight": name})
    with pytest.raises(ModelLoadError, match=r"not a \.safetensors file name"):
        open_hf_folder(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "\udcff"])
def test_an_index_that_is_no_index(content: str, folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        open_hf_folder(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000])
def test_a_config_that_is_no_object(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        open_hf_folder(folder)


def test_a_config_that_cannot_be_read(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config\.json does not exist"):
        open_hf_folder(folder)
    (folder / "config.json").mkdir()
    with pytest.raises(ModelLoadError, match="cannot be read"):
        open_hf_folder(folder)
    if os.geteuid():
        (folder / "config.json").rmdir()
        (folder / "config.json").touch(0)
        with pytest.raises(ModelLoadError, match="cannot be read"):
            open_hf_folder(folder)


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"bits": 4}}, "an unnamed method"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
    ],
)
def test_quantised_checkpoints_are_refused_by_name(fields: dict[str, Any], method: str, folder: Path) -> None:
    edit_json(folder / "config.json", **fields)
    with pytest.raises(UnsupportedModelError, match=f"quantised with '{method}'"):
        open_hf_folder(folder)


@settings(max_examples=60)
@given(st.data())
def test_a_truncated_or_damaged_shard_gives_a_load_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("model")
    write_folder(folder, *tiny_llama())
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(ModelLoadError, match=r"model\.safetensors is not a whole safetensors file"):
            open_hf_folder(folder)
        return
    content[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        dict(open_hf_folder(folder).tensors)
    except ModelLoadError:
        return
