"""Whole loads: both formats, both number formats, with and without the cache, and what goes wrong."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.runtime.env import Environment, read_environment
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.loading import LoadedModel, load_model
from ramet.runtime.protocol import InvalidRequestError, ModelLoadError, UnsupportedModelError
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.models.loading.tiny_folder import write_folder, write_tokenizer
from tests.runtime.models.loading.tiny_gguf import tiny_llama, write_gguf

if TYPE_CHECKING:
    from tests.runtime.models.conftest import MakeReference, MakeTiny

TOKENS = [1, 17, 5, 99, 42, 3, 77]


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return read_environment({"RAMET_CACHE_DIR": str(tmp_path / "cache"), "RAMET_OFFLINE": "1"})


def logits(loaded: LoadedModel, token_ids: list[int] = TOKENS) -> Tensor:
    with torch.inference_mode():
        return loaded.model.forward(dense_batch([(DenseSequence(), token_ids)], loaded.device))


def load(model: Path, env: Environment, **options: Any) -> LoadedModel:
    return load_model(model, env=env, device="cpu", **options)


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "m.gguf", *tiny_llama())
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_gguf_and_folder_of_one_model_give_the_same_logits(
    quantization: str, gguf_file: Path, env: Environment, tmp_path: Path
) -> None:
    write_folder(tmp_path / "folder", *tiny_llama(), num_shards=3)
    from_gguf = load(gguf_file, env, quantization=quantization)
    from_folder = load(tmp_path / "folder", env, quantization=quantization)
    assert torch.equal(logits(from_gguf), logits(from_folder))
    assert from_gguf.weight_bytes == from_folder.weight_bytes
    assert from_gguf.tokenizer_spec.vocab_size == from_folder.tokenizer_spec.vocab_size == 131
    ids = [FastTokenizer(loaded.tokenizer_spec).encode("the cat") for loaded in (from_gguf, from_folder)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_logits_are_transformers_own(
    architecture: str, make_tiny: "MakeTiny", env: Environment, tmp_path: Path
) -> None:
    fields = {"head_dim": 16}
    if "Gemma" in architecture:  # GGUF does not carry the scalar: it is head_dim
        fields |= {"sliding_window": 8, "query_pre_attn_scalar": 16}
    tiny = make_tiny(architecture, fields)
    expected = tiny.expected(TOKENS)
    tiny.reference.save_pretrained(tmp_path / "folder", max_shard_size="80KB")
    write_tokenizer(tmp_path / "folder", 131)
    write_gguf(tmp_path / "m.gguf", {**tiny.hf_config, "architectures": [architecture]}, tiny.tensors)
    for path in (tmp_path / "folder", tmp_path / "m.gguf"):
        got = logits(load(path, env, dtype="float32"))
        assert float((got - expected).abs().max() / expected.abs().max()) < 1e-4


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_second_load_comes_from_the_cache(quantization: str, gguf_file: Path, env: Environment) -> None:
    first = load(gguf_file, env, quantization=quantization)
    second = load(gguf_file, env, quantization=quantization)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert torch.equal(logits(first), logits(second))
    assert first.config == second.config
    assert first.tokenizer_spec == second.tokenizer_spec
    assert first.weight_bytes == second.weight_bytes > 0
    assert {"read", "dequantise", "prepare", "cache_write", "build"} <= first.timings.keys()
    assert second.timings.keys() == {"resolve", "cache_read", "build"}


def test_each_way_of_computing_has_its_own_entry(gguf_file: Path, env: Environment) -> None:
    for options in (
        {},
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"quantization": "int8", "dtype": "bfloat16"},
    ):
        assert not load(gguf_file, env, **options).from_cache
    assert len(list((env.cache_dir / "weights").iterdir())) == 4
    bfloat16 = load(gguf_file, env, dtype="bfloat16")
    assert bfloat16.from_cache
    assert bfloat16.dtype == torch.bfloat16


def test_a_folder_is_cached_only_where_it_is_quantised(env: Environment, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", *tiny_llama())
    load(tmp_path / "folder", env, quantization="none")
    assert not (env.cache_dir / "weights").exists()
    load(tmp_path / "folder", env)
    assert load(tmp_path / "folder", env).from_cache


def test_a_changed_tokenizer_or_template_is_noticed(env: Environment, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", *tiny_llama())
    load(tmp_path / "folder", env)
    (tmp_path / "folder" / "chat_template.jinja").write_text("{{ messages }}")
    loaded = load(tmp_path / "folder", env)
    assert not loaded.from_cache
    assert loaded.tokenizer_spec.chat_template == "{{ messages }}"


def test_a_replaced_file_is_noticed(gguf_file: Path, env: Environment) -> None:
    first = load(gguf_file, env)
    write_gguf(gguf_file, *tiny_llama(seed=1))
    second = load(gguf_file, env)
    assert not second.from_cache
    assert not torch.equal(logits(first), logits(second))


def test_a_damaged_entry_is_built_anew(
    gguf_file: Path, env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits(load(gguf_file, env))
    [entry] = (env.cache_dir / "weights").iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        again = load(gguf_file, env)
    assert not again.from_cache
    assert "damaged" in caplog.text
    assert torch.equal(logits(again), expected)
    assert load(gguf_file, env).from_cache


def test_an_entry_with_another_description_is_built_anew(
    gguf_file: Path, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.runtime.models.loading.weight_cache import WeightCache

    load(gguf_file, env)
    [entry] = (env.cache_dir / "weights").iterdir()
    WeightCache(entry.parent, 1 << 30).store(entry.stem, b"\x93\x01\x02\x03", {})
    assert not load(gguf_file, env).from_cache
    assert load(gguf_file, env).from_cache


def test_without_a_usable_cache_folder_it_loads_and_says_so(
    gguf_file: Path, env: Environment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        loaded = load(gguf_file, env, cache_dir=tmp_path / "file")
    assert "not cached" in caplog.text
    assert logits(loaded).shape == (len(TOKENS), 131)


def test_a_bound_of_zero_turns_the_cache_off(gguf_file: Path, env: Environment) -> None:
    env = replace(env, cache_bytes=0)
    assert not load(gguf_file, env).from_cache
    assert not load(gguf_file, env).from_cache
    assert not env.cache_dir.exists()


def test_progress_names_each_phase_and_ends(gguf_file: Path, env: Environment) -> None:
    heard: dict[str, list[float]] = {}
    load(gguf_file, env, progress=lambda phase, fraction: heard.setdefault(phase, []).append(fraction))
    assert {"resolve", "read", "dequantise", "prepare", "build"} <= heard.keys()
    assert all(steps == sorted(steps) and steps[-1] == 1.0 for steps in heard.values())


def test_what_was_loaded_is_described(gguf_file: Path, env: Environment) -> None:
    loaded = load(gguf_file, env)
    assert loaded.source == str(gguf_file)
    assert loaded.quantization == "int8"
    assert loaded.dtype == torch.float32
    assert loaded.device == torch.device("cpu")
    assert loaded.config.architecture == "LlamaForCausalLM"


def test_the_number_of_threads_is_left_as_it_was(gguf_file: Path, env: Environment) -> None:
    before = torch.get_num_threads()
    load(gguf_file, env)
    config, tensors = tiny_llama()
    del tensors["model.norm.weight"]
    write_gguf(gguf_file, config, tensors)
    with pytest.raises(ModelLoadError):
        load(gguf_file, env)
    assert torch.get_num_threads() == before


def test_experts_of_a_gguf_file(make_tiny: "MakeTiny", env: Environment, tmp_path: Path) -> None:
    fields = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    tiny = make_tiny("MixtralForCausalLM", fields)
    write_gguf(tmp_path / "m.gguf", {**tiny.hf_config, "architectures": ["MixtralForCausalLM"]}, tiny.tensors)
    loaded = load(tmp_path / "m.gguf", env, dtype="float32")
    expected = tiny.expected(TOKENS)
    assert loaded.config.architecture == "MixtralForCausalLM"
    assert float((logits(loaded) - expected).abs().max() / expected.abs().max()) < 1e-4


def test_a_split_gguf_file(env: Environment, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", *tiny_llama(), split_max_tensors=6)
    write_gguf(tmp_path / "whole.gguf", *tiny_llama())
    part = sorted(tmp_path.glob("m-*.gguf"))[0]
    assert torch.equal(logits(load(part, env)), logits(load(tmp_path / "whole.gguf", env)))


def test_quantised_gguf_weights_are_used_as_they_decode(env: Environment, tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    write_gguf(tmp_path / "m.gguf", config, tensors, lambda _: Kind.Q4_1)
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2}
    for name, tensor in matrices.items():
        values = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), Kind.Q4_1), Kind.Q4_1)
        tensors[name] = torch.from_numpy(values)
    write_folder(tmp_path / "folder", config, tensors)
    got, expected = (logits(load(tmp_path / name, env, dtype="float32")) for name in ("m.gguf", "folder"))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_architecture_runs_through_transformers(
    make_reference: "MakeReference", env: Environment, tmp_path: Path
) -> None:
    reference = make_reference("OlmoForCausalLM", {})
    reference.save_pretrained(tmp_path / "folder")
    write_tokenizer(tmp_path / "folder", 131)
    loaded = load(tmp_path / "folder", env)
    with torch.inference_mode():
        reference.set_attn_implementation("eager")
        expected = reference(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    assert (loaded.quantization, loaded.dtype, loaded.from_cache) == ("none", torch.float32, False)
    assert loaded.weight_bytes == sum(p.nbytes for p in {id(p): p for p in reference.parameters()}.values())
    with pytest.raises(InvalidRequestError, match="quantization='none'"):
        load(tmp_path / "folder", env, quantization="int8")


def edit_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def test_errors_name_the_folder(env: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_folder(folder, *tiny_llama())
    edit_config(folder, hidden_size=63)
    with pytest.raises(ModelLoadError, match=str(folder)):
        load(folder, env)
    edit_config(folder, hidden_size=64, vocab_size=132)
    with pytest.raises(ModelLoadError, match=rf"{folder}.*embed_tokens"):
        load(folder, env)
    edit_config(folder, architectures=["NoSuchForCausalLM"], model_type="no_such")
    with pytest.raises(UnsupportedModelError):
        load(folder, env)
    edit_config(folder, architectures=None, model_type=None)
    with pytest.raises(ModelLoadError, match=str(folder)):
        load(folder, env)


def test_a_missing_tokenizer_is_said(env: Environment, tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", *tiny_llama())
    (tmp_path / "folder" / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load(tmp_path / "folder", env)


def test_a_missing_gguf_tensor_is_named(env: Environment, tmp_path: Path) -> None:
    config, tensors = tiny_llama()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_gguf(tmp_path / "m.gguf", config, tensors)
    with pytest.raises(ModelLoadError, match=r"m\.gguf: .*layers\.1\.mlp\.up_proj"):
        load(tmp_path / "m.gguf", env)


def test_an_unknown_gguf_architecture_is_refused_by_name(env: Environment, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("x", torch.zeros(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf: .*'mamba'"):
        load(tmp_path / "m.gguf", env)


def test_wrong_options_are_refused_before_anything_is_read(env: Environment) -> None:
    with pytest.raises(InvalidRequestError, match="quantization"):
        load_model("/no/such/file", quantization="int3", env=env)


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, *tiny_llama(), lambda _: Kind.Q8_0)
    return path.read_bytes()


@settings(max_examples=120)
@given(st.data())
def test_a_damaged_file_loads_or_raises_a_load_error(
    model_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(model_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 6000))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(damaged)
    env = read_environment({"RAMET_CACHE_DIR": str(path.parent), "RAMET_CACHE_BYTES": "0"})
    try:
        load(path, env)
    except ModelLoadError as error:
        assert str(path) in str(error)  # noqa: PT017, a damaged file may load as well
