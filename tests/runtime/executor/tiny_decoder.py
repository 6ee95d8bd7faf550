"""A random decoder of two layers on real paged attention."""

import torch

from ramet.runtime.attention.torch_backend import TorchAttentionBackend
from ramet.runtime.executor.model_runner import ModelRunner, RunnerConfig
from ramet.runtime.forward import DeviceKVPool
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.decoder import DecoderModel
from ramet.runtime.models.prepare import Quantization, prepare_weights

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=131,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=512,
    tie_embeddings=True,
)


def random_decoder(quantization: Quantization = "none") -> DecoderModel:
    generator = torch.Generator().manual_seed(0)
    hidden, inner, config = CONFIG.hidden_size, CONFIG.intermediate_size, CONFIG
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    norms = ["model.norm.weight"]
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.self_attn.q_proj.weight": (q_size, hidden),
            f"{name}.self_attn.k_proj.weight": (kv_size, hidden),
            f"{name}.self_attn.v_proj.weight": (kv_size, hidden),
            f"{name}.self_attn.o_proj.weight": (hidden, q_size),
            f"{name}.mlp.gate_proj.weight": (inner, hidden),
            f"{name}.mlp.up_proj.weight": (inner, hidden),
            f"{name}.mlp.down_proj.weight": (hidden, inner),
        }
        norms += [f"{name}.input_layernorm.weight", f"{name}.post_attention_layernorm.weight"]
    tensors = {
        name: torch.randn(shape, generator=generator) * 1.5 * shape[1] ** -0.5 for name, shape in shapes.items()
    }
    tensors |= {name: 1.0 + 0.1 * torch.randn(hidden, generator=generator) for name in norms}
    weights = prepare_weights(config, tensors, quantization=quantization, dtype=torch.float32)
    return DecoderModel(config, weights, CPU, torch.float32)


def decoder_runner(
    model: DecoderModel, *, page_size: int, num_pages: int = 400, max_logit_elements: int = 1 << 20
) -> ModelRunner:
    pool = DeviceKVPool(
        num_layers=CONFIG.num_layers,
        num_slots=num_pages * page_size,
        num_kv_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    attention = TorchAttentionBackend(
        pool,
        num_heads=CONFIG.num_heads,
        num_kv_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        page_size=page_size,
        device=CPU,
    )
    config = RunnerConfig(
        max_running_requests=16,
        max_tokens_per_request=CONFIG.max_positions,
        page_size=page_size,
        max_logit_elements=max_logit_elements,
    )
    return ModelRunner(model, attention, config, CPU)
