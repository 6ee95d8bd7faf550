"""The composition, on a tiny random model in a Hugging Face folder."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ramet.runtime.attention import TorchAttentionBackend
from ramet.runtime.engine import build
from ramet.runtime.engine.build import build_engine, num_parameters
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.forward import DeviceKVPool, QuantizedKVPool
from ramet.runtime.models.config import ModelConfig, MoeConfig
from ramet.runtime.models.loading import load_model
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    FinishReason,
    GenerateInput,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    ModelLoadError,
    Regex,
    SamplingParams,
    TextOutput,
    UnsupportedConstraintError,
)
from tests.runtime.models.loading.tiny_folder import write_folder

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 300, 32, 48, 2, 4, 2
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        scaled: torch.Tensor = torch.randn(*shape, generator=generator) * float(shape[-1] ** -0.5)
        return scaled

    tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    keys = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes = {"q_proj": HIDDEN, "k_proj": keys, "v_proj": keys, "o_proj": HIDDEN}
        tensors |= {f"{prefix}self_attn.{name}.weight": random(rows, HIDDEN) for name, rows in shapes.items()}
        tensors |= {f"{prefix}mlp.{name}.weight": random(INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        tensors[f"{prefix}mlp.down_proj.weight"] = random(HIDDEN, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_folder(path, CONFIG, tensors)
    return path


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A build sets the process's number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(folder),
        "cache_dir": str(tmp_path),
        "kv_tokens": 256,
        "threads": 1,
        "quantization": "none",
    }


def answers(settings: dict[str, Any], **params: Any) -> list[list[int]]:
    """Token ids of the answers to two prompts that begin alike."""
    core = build_engine(EngineConfig(**settings)).core
    for key in ("a", "b"):
        ids = [*range(10, 50), ord(key)]
        core.add(
            GenerateInput(request_id=key, token_ids=ids, params=SamplingParams(**{"max_tokens": 8, **params}))
        )
    outputs: list[TextOutput] = []
    while core.has_work():
        outputs += core.step()
        core.check_integrity()
    assert all(output.finish_reason is not FinishReason.ERROR for output in outputs)
    return [
        [t for output in outputs if output.request_id == key for t in output.token_ids] for key in ("a", "b")
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"schedule_policy": "fcfs", "eviction_policy": "lfu"},
        {"page_size": 1},
        {"max_tokens_per_step": 7},
        {"max_running_requests": 1},
        {"enable_prefix_cache": False},
        {"kv_tokens": None, "memory_fraction": 0.001, "page_size": 32},
        {"context_length": 60},
    ],
)
def test_settings_change_how_and_not_what_is_computed(settings: dict[str, Any], change: dict[str, Any]) -> None:
    assert answers({**settings, **change}, temperature=0, ignore_eos=True) == answers(
        settings, temperature=0, ignore_eos=True
    )


def test_a_seed_of_the_engine_repeats_its_samples(settings: dict[str, Any]) -> None:
    assert answers({**settings, "seed": 1}) == answers({**settings, "seed": 1})
    assert answers({**settings, "seed": 1}) != answers({**settings, "seed": 2})


def test_it_says_what_was_built(settings: dict[str, Any]) -> None:
    phases: list[str] = []
    built = build_engine(EngineConfig(**settings), lambda phase, fraction: phases.append(phase))
    info = built.info
    assert (info.vocab_size, info.context_length, info.kv_tokens, info.page_size) == (VOCAB, 128, 256, 1)
    assert (info.architecture, info.num_layers, info.quantization) == ("LlamaForCausalLM", LAYERS, "none")
    assert (info.device, info.dtype) == ("cpu", "float32")
    assert info.kv_bytes == 256 * 2 * LAYERS * HIDDEN // HEADS * KV_HEADS * 4
    assert info.num_parameters == VOCAB * HIDDEN + LAYERS * (2 * HIDDEN * (32 + 16) + 3 * HIDDEN * INNER)
    assert {"resolve", "build", "tokenizer", "kv_pool", "warmup"} <= set(info.timings)
    assert "build" in phases
    assert built.tokenizer.vocab_size == VOCAB
    assert built.tokenizer_spec.vocab_size == VOCAB


def test_threads_are_set(settings: dict[str, Any]) -> None:
    build_engine(EngineConfig(**{**settings, "threads": 3}))
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"context_length": 129}, "context_length"),
        ({"kv_tokens": 10**13}, "kv_tokens"),
        ({"device": "cuda:99"}, "device"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    settings: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        build_engine(EngineConfig(**{**settings, **change}))
    assert caught.value.field == field


def test_a_damaged_model_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError):
        build_engine(EngineConfig(**{**settings, "model": str(tmp_path)}))


@pytest.mark.parametrize(
    "grammar",
    [Choice(("the", "he")), Regex("the|he"), JsonSchema('{"enum": [1, 2]}'), Ebnf('root ::= "the" | "he"')],
)
def test_grammars_are_enforced(settings: dict[str, Any], grammar: GrammarSpec) -> None:
    core = build_engine(EngineConfig(**settings)).core
    params = SamplingParams(grammar=grammar, temperature=0, max_tokens=9)
    assert text_of(core, params) in ("the", "he", "1", "2")
    core.close()


def test_a_grammar_that_no_engine_enforces_ends_its_request_alone(settings: dict[str, Any]) -> None:
    core = build_engine(EngineConfig(**settings)).core
    with pytest.raises(UnsupportedConstraintError, match="look-around"):
        text_of(core, SamplingParams(grammar=Regex("(?=a)b"), max_tokens=9))
    assert text_of(core, SamplingParams(grammar=Regex("he"), max_tokens=9)) == "he"
    core.close()


def text_of(core: EngineCore, params: SamplingParams) -> str:
    """The text of one request; raises what it ended with."""
    core.add(GenerateInput(request_id="a", token_ids=[10], params=params))
    text = ""
    while core.has_work():
        for output in core.step():
            text += output.text
            if output.error is not None:
                raise UnsupportedConstraintError(output.error, field="grammar")
    return text


def test_a_gpu_gets_the_kernels_for_it(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from ramet.runtime.attention.gpu_backend import GpuAttentionBackend

    loaded = load_model(
        str(folder), quantization="none", dtype="float32", device="cpu", cache_dir=tmp_path, progress=None
    )
    config = EngineConfig(model=str(folder))
    pool = DeviceKVPool(
        num_layers=LAYERS,
        num_slots=16,
        num_kv_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert not isinstance(build._attention(config, loaded, pool), GpuAttentionBackend)
    elsewhere = dataclasses.replace(loaded, device=torch.device("cuda"))
    assert isinstance(build._attention(config, elsewhere, pool), GpuAttentionBackend)
    eight_bits = build._pool(loaded, torch.int8, 16)
    assert isinstance(eight_bits, QuantizedKVPool)
    assert eight_bits.kv_format == "int8"
    assert isinstance(build._attention(config, elsewhere, eight_bits), GpuAttentionBackend)
    wide = msgspec.structs.replace(loaded.config, head_dim=512)
    too_wide = dataclasses.replace(elsewhere, config=wide)
    assert isinstance(build._attention(config, too_wide, pool), TorchAttentionBackend)


def test_parameters_are_counted_from_the_shapes() -> None:
    dense = ModelConfig(
        architecture="X",
        vocab_size=10,
        hidden_size=4,
        intermediate_size=6,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=2,
        max_positions=8,
    )
    assert num_parameters(dense) == 2 * (2 * 4 * (4 + 2) + 3 * 4 * 6) + 2 * 10 * 4
    moe = MoeConfig(
        num_experts=3, num_experts_per_token=1, intermediate_size=5, normalize_top_k=True, sparse_layers=(1,)
    )
    sparse = msgspec.structs.replace(dense, moe=moe, tie_embeddings=True)
    assert num_parameters(sparse) == 2 * 48 + 72 + 3 * (3 * 4 * 5 + 4) + 40
