"""ModelConfig: one record that describes every decoder architecture implemented here."""

from typing import Literal

import msgspec


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding and its scaling.

    ``linear``: positions divided by ``factor``. ``llama3``: Llama 3.1's frequency bands. ``yarn``: arXiv
    2309.00071.
    """

    theta: float = 10000.0
    rotary_dim: int | None = None
    """Leading dimensions of a head that rotate; None: all."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: bool = False
    """Every frequency is divided by its entry of the weight ``rope_freqs.weight`` (how GGUF files carry
    llama3)."""


class MoeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A sparse MLP: ``num_experts_per_token`` of ``num_experts`` run for each token."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalize_top_k: bool
    """Divide the chosen experts' weights by their sum."""
    sparse_layers: tuple[int, ...] = ()
    """Layers with experts; the others have a dense MLP."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes and variants of a decoder-only transformer."""

    architecture: str
    """The Hugging Face class name, such as LlamaForCausalLM."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    """The context length, tokens."""
    norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    local_rope: RopeConfig | None = None
    """Rope of the sliding-window layers where it differs (Gemma 3)."""
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    """Layers that attend within sliding_window; the others attend to everything."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_bias: bool = False
    """q, k, v projections have a bias (Qwen2)."""
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k before rope (Qwen3, Gemma 3)."""
    attention_scale: float | None = None
    """None: head_dim ** -0.5."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    norm_plus_one: bool = False
    """RMSNorm multiplies by 1 + weight (Gemma)."""
    sandwich_norms: bool = False
    """Norms after attention and MLP too (Gemma 2 and 3)."""
    embedding_scale: float | None = None
    """Embeddings are multiplied by it (Gemma: sqrt(hidden_size), rounded as the checkpoint's dtype rounds
    it)."""
    tie_embeddings: bool = False
    moe: MoeConfig | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """The dtype that the weights were published in, where the checkpoint says so."""
    text_part_of: str | None = None
    """The multimodal class whose text decoder this is; the tensors of its other parts are not loaded."""
