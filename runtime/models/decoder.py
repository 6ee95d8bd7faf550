"""DecoderModel: every architecture that is implemented here, composed from the layers by its config."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from ramet.kernels import has_gpu_kernels
from ramet.runtime.forward import AttentionSpec, ForwardBatch
from ramet.runtime.layers import (
    MLP,
    AttentionBlock,
    DecoderLayer,
    Embedding,
    FloatEmbedding,
    FusedSparseMLP,
    GatedMLP,
    Int8Embedding,
    RMSNorm,
    RotaryTable,
    SparseMLP,
    linear_from,
    linear_of,
)
from ramet.runtime.layers.rotary import (
    inverse_frequencies,
    llama3_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)
from ramet.runtime.models.config import ModelConfig, MoeConfig, RopeConfig
from ramet.runtime.protocol import ModelLoadError


class DecoderModel:
    """A decoder-only transformer (see ``Model`` for the contract of ``forward``)."""

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
    ) -> None:
        """weights: of ``prepare_weights`` with this dtype; they are moved to device where they are
        elsewhere."""
        _check_dtype(weights, dtype)
        weights = {name: tensor.to(device) for name, tensor in weights.items()}
        self._config = config
        self._embedding = _embedding(config, weights, dtype)
        self._final_norm = RMSNorm(weights["final_norm.weight"], config.norm_eps)
        # In threads: int8 weights are brought into their kernel's layout, which is most of the time of a start.
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            head = pool.submit(linear_from, weights, "lm_head" if "lm_head.weight" in weights else "embedding")
            self._layers = list(pool.map(partial(_layer, config, weights), range(config.num_layers)))
            self._lm_head = head.result()
        self._rope = _rotary_table(config, config.rope, device, weights.get("rope_factors.weight"))
        local = config.local_rope
        self._local_rope = None if local is None else _rotary_table(config, local, device, None)
        self._sliding = frozenset(config.sliding_layers)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.logits(self.hidden_states(batch))

    def hidden_states(self, batch: ForwardBatch) -> Tensor:
        """What the output head reads: [num_logits, hidden_size], for who applies it piece by piece."""
        plan, rope = batch.attention, self._rope.lookup(batch.positions)
        local = rope if self._local_rope is None else self._local_rope.lookup(batch.positions)
        pending, residual = self._embedding(batch.input_ids), None
        last = len(self._layers) - 1
        for i, layer in enumerate(self._layers):
            rows = batch.logit_indices if i == last else None
            pending, residual = layer(pending, residual, local if i in self._sliding else rope, plan, rows)
        assert residual is not None  # a config has at least one layer
        normed, _ = self._final_norm.add(pending, residual)
        return normed

    def logits(self, hidden_states: Tensor) -> Tensor:
        """forward(batch) is logits(hidden_states(batch)): [num_logits, vocab_size] fp32, soft cap applied."""
        logits = self._lm_head(hidden_states).float()
        if (cap := self._config.logit_softcap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def _check_dtype(weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    for name, tensor in weights.items():
        if name.endswith((".scale", "norm.weight", "rope_factors.weight")) or not tensor.is_floating_point():
            continue
        if tensor.dtype != dtype:
            raise ModelLoadError(
                f"the weight {name} was prepared as {tensor.dtype}, not {dtype}; prepare it again"
            )


def _embedding(config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Embedding:
    table, scale = weights["embedding.weight"], weights.get("embedding.scale")
    if scale is None:
        return FloatEmbedding(table, config.embedding_scale)
    return Int8Embedding(table, scale, dtype, config.embedding_scale)


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], layer: int) -> DecoderLayer:
    def norm(name: str) -> RMSNorm:
        return RMSNorm(weights[f"layers.{layer}.{name}.weight"], config.norm_eps)

    scale = config.attention_scale if config.attention_scale is not None else config.head_dim**-0.5
    attention = AttentionBlock(
        linear_from(weights, f"layers.{layer}.qkv"),
        linear_from(weights, f"layers.{layer}.attention_output"),
        AttentionSpec(
            layer_id=layer,
            scale=scale,
            sliding_window=config.sliding_window if layer in config.sliding_layers else None,
            softcap=config.attention_softcap,
        ),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        head_norms=(norm("q_norm"), norm("k_norm")) if config.qk_norm else None,
    )
    return DecoderLayer(
        attention,
        _mlp(config, weights, layer),
        attention_norm=norm("attention_norm"),
        mlp_norm=norm("mlp_norm"),
        output_norms=(norm("after_attention_norm"), norm("after_mlp_norm")) if config.sandwich_norms else None,
    )


def _mlp(config: ModelConfig, weights: Mapping[str, Tensor], layer: int) -> MLP:
    if config.moe is not None and layer in config.moe.sparse_layers:
        return _sparse_mlp(config, config.moe, weights, f"layers.{layer}")
    return GatedMLP(
        linear_from(weights, f"layers.{layer}.gate_up"),
        linear_from(weights, f"layers.{layer}.down"),
        config.activation,
    )


def _sparse_mlp(config: ModelConfig, moe: MoeConfig, weights: Mapping[str, Tensor], prefix: str) -> MLP:
    names = "gate_up", "down"
    gate_up, down = (weights[f"{prefix}.experts.{name}.weight"] for name in names)
    gate_up_scale, down_scale = (weights.get(f"{prefix}.experts.{name}.scale") for name in names)
    router = linear_from(weights, f"{prefix}.router")
    if has_gpu_kernels(gate_up.device):
        return FusedSparseMLP(
            router,
            (gate_up, down),
            None if gate_up_scale is None or down_scale is None else (gate_up_scale, down_scale),
            activation=config.activation,
            num_experts_per_token=moe.num_experts_per_token,
            normalize=moe.normalize_top_k,
        )
    experts = [
        GatedMLP(
            linear_of(gate_up[i], None if gate_up_scale is None else gate_up_scale[i]),
            linear_of(down[i], None if down_scale is None else down_scale[i]),
            config.activation,
        )
        for i in range(moe.num_experts)
    ]
    return SparseMLP(
        router, experts, num_experts_per_token=moe.num_experts_per_token, normalize=moe.normalize_top_k
    )


def _rotary_table(
    config: ModelConfig, rope: RopeConfig, device: torch.device, factors: Tensor | None
) -> RotaryTable:
    """factors: [rotary_dim / 2], divided out of the frequencies (GGUF's form of llama3)."""
    rotary_dim = rope.rotary_dim or config.head_dim
    frequencies, attention_factor = inverse_frequencies(rope.theta, rotary_dim), 1.0
    original = rope.original_max_positions or config.max_positions
    match rope.scaling:
        case "none":
            pass
        case "linear":
            frequencies = frequencies / rope.factor
        case "llama3":
            frequencies = llama3_frequencies(
                frequencies,
                factor=rope.factor,
                low_freq_factor=rope.low_freq_factor,
                high_freq_factor=rope.high_freq_factor,
                original_positions=original,
            )
        case "yarn":
            frequencies = yarn_frequencies(
                rope.theta,
                rotary_dim,
                factor=rope.factor,
                original_positions=original,
                beta_fast=rope.beta_fast,
                beta_slow=rope.beta_slow,
                truncate=rope.truncate,
            )
            attention_factor = rope.attention_factor or yarn_attention_factor(
                rope.factor, rope.mscale, rope.mscale_all_dim
            )
    if factors is not None:
        frequencies = frequencies / factors.to(frequencies.device)
    return RotaryTable(
        frequencies, max_positions=config.max_positions, device=device, attention_factor=attention_factor
    )
