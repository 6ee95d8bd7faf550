"""Whole models of random weights for ``benchmarks.gpu``: a step of decoding and one of prefill, with graphs and
without, beside transformers where it is installed."""

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_cases import MODELS, PAGE_SIZE, TINY_MODELS, Case, ModelShape, difference
from ramet.runtime.attention import AttentionBackend, AttentionMetadata, TorchAttentionBackend
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.executor.decode_graphs import DecodeGraphs
from ramet.runtime.executor.graphs import CudaGraphCapture
from ramet.runtime.forward import DeviceKVPool, ForwardBatch
from ramet.runtime.models.config import ModelConfig, RopeConfig
from ramet.runtime.models.decoder import DecoderModel

WHOLES = ((MODELS[1], 28, 151936), (MODELS[0], 32, 128256))
TINY_WHOLES = ((TINY_MODELS[0], 2, 96),)
"""Shape, layers, vocabulary."""
Step = tuple[int, int, int]
"""Rows, queries of each, tokens of each in all."""
STEPS: tuple[Step, ...] = ((1, 1, 1024), (32, 1, 1024), (128, 1, 1024), (1, 2048, 2048))
TINY_STEPS: tuple[Step, ...] = ((2, 1, 20), (1, 6, 6))


def model_cases(
    models: Sequence[tuple[ModelShape, int, int]],
    steps: Sequence[Step],
    dtype: torch.dtype,
    device: torch.device,
) -> Iterator[Case]:
    """models: shapes, numbers of layers and sizes of the vocabulary. Made one by one."""
    for shape, num_layers, vocab_size in models:
        config = ModelConfig(
            architecture="LlamaForCausalLM",
            vocab_size=vocab_size,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_layers=num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            max_positions=8192,
            rope=RopeConfig(theta=500000.0),
            tie_embeddings=True,
        )
        model = DecoderModel(config, _weights(config, dtype, device), device, dtype)
        other = _transformers_model(config, dtype, device)
        for step in steps:
            yield _ModelStep(shape.name, model, step, dtype, device).case(other)


class _ModelStep:
    """A step of a model over a pool of random keys and values."""

    def __init__(
        self, name: str, model: DecoderModel, step: Step, dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, query_len, kv_len = step
        self._name, self._model, self._step, self._device = name, model, step, device
        config, pages = model.config, -(-kv_len // PAGE_SIZE)
        self._pool = DeviceKVPool(
            num_layers=config.num_layers,
            num_slots=rows * pages * PAGE_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=device,
        )
        for layer in range(config.num_layers):
            for part in self._pool.layer(layer):
                part.normal_()
        heads, kv_heads = config.num_heads, config.num_kv_heads
        self._backend = GpuAttentionBackend(
            self._pool,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=config.head_dim,
            page_size=PAGE_SIZE,
            dtype=dtype,
            device=device,
        )
        self._oracle = TorchAttentionBackend(
            self._pool,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=config.head_dim,
            page_size=PAGE_SIZE,
            device=device,
        )
        table = torch.arange(rows * pages, dtype=torch.int32).view(rows, pages).numpy()
        self._metadata = AttentionMetadata([query_len] * rows, [kv_len] * rows, table)
        self._ids = torch.randint(0, config.vocab_size, (rows * query_len,), device=device)
        self._positions = torch.arange(kv_len - query_len, kv_len, device=device).repeat(rows)
        self._last = torch.arange(query_len - 1, rows * query_len, query_len, device=device)

    def case(self, other: Any) -> Case:
        """other: the same shape in transformers, or None."""
        rows, query_len, kv_len = self._step
        config = self._model.config
        runs: dict[str, Callable[[], object]] = {}
        run: Callable[[], Tensor] = self._eager
        if query_len == 1 and self._device.type == "cuda":
            graphs = DecodeGraphs(
                self._model,
                self._backend,
                CudaGraphCapture(self._device),
                self._device,
                max_rows=rows,
                max_pages=-(-kv_len // PAGE_SIZE),
            )
            run, runs["without a graph"] = self._with(graphs), self._eager
        if other is not None:
            runs["transformers"] = self._transformers(other)
        weights = (
            config.num_layers
            * config.hidden_size
            * (
                (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
                + 3 * config.intermediate_size
            )
        )
        weights += config.vocab_size * config.hidden_size
        kv = rows * kv_len * config.num_layers * 2 * config.num_kv_heads * config.head_dim
        kind = "decode" if query_len == 1 else "prefill"
        return Case(
            f"{self._name}, whole: {kind} {rows} x {kv_len}",
            run,
            lambda: self._error(run),
            (weights + kv) * self._ids.new_empty(0, dtype=self._pool.layer(0)[0].dtype).element_size(),
            runs,
        )

    def _batch(self, backend: AttentionBackend) -> ForwardBatch:
        return ForwardBatch(self._ids, self._positions, backend.plan(self._metadata), self._last)

    def _eager(self) -> Tensor:
        return self._model.forward(self._batch(self._backend))

    def _with(self, graphs: DecodeGraphs) -> Callable[[], Tensor]:
        def run() -> Tensor:
            logits = graphs.run(self._batch(self._backend))
            if logits is None:
                raise RuntimeError(f"no graph of {self._step}: {graphs.why_not}")
            return logits

        return run

    def _error(self, run: Callable[[], Tensor]) -> float:
        """From torch's attention, as a share of the largest logit: layers of bf16 add their last bits up."""
        expected = self._model.forward(self._batch(self._oracle))
        return difference(run(), expected) / max(1.0, float(expected.abs().max()))

    def _transformers(self, other: Any) -> Callable[[], object]:
        from transformers import DynamicCache

        rows, query_len, kv_len = self._step
        cache, config, past = DynamicCache(), self._model.config, kv_len - query_len
        if past:
            for layer in range(config.num_layers):
                shape = (rows, config.num_kv_heads, past, config.head_dim)
                keys = torch.randn(shape, dtype=other.dtype, device=self._device)
                cache.update(keys, keys, layer)
        ids = self._ids.view(rows, query_len)

        # The argument was renamed in 5.x.
        known = inspect.signature(other.forward).parameters
        name = "cache" if "cache" in known else "past_key_values"

        @torch.inference_mode()
        def run() -> object:
            if not past:
                return other(ids, use_cache=False, logits_to_keep=1)
            out = other(ids, **{name: cache}, use_cache=True, logits_to_keep=1)
            cache.crop(-query_len)
            return out

        return run


def _weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Random, of the variance that keeps activations where they are."""

    def linear(rows: int, columns: int) -> Tensor:
        return torch.randn((rows, columns), dtype=dtype, device=device).mul_(columns**-0.5)

    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    weights = {"embedding.weight": linear(config.vocab_size, hidden)}
    ones = torch.ones(hidden, device=device)
    weights["final_norm.weight"] = ones
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}"
        weights |= {
            f"{prefix}.qkv.weight": linear(queries + 2 * config.num_kv_heads * config.head_dim, hidden),
            f"{prefix}.attention_output.weight": linear(hidden, queries),
            f"{prefix}.gate_up.weight": linear(2 * config.intermediate_size, hidden),
            f"{prefix}.down.weight": linear(hidden, config.intermediate_size),
            f"{prefix}.attention_norm.weight": ones,
            f"{prefix}.mlp_norm.weight": ones,
        }
    return weights


def _transformers_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """The same shape with weights of its own; None where transformers is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import LlamaConfig, LlamaForCausalLM

    wanted = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(wanted).eval()
    finally:
        torch.set_default_dtype(default)
