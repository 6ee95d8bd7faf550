"""Cases of ``benchmarks.gpu`` beside attention and element-wise kernels: draws, masks, weights and caches of
few bits, experts, latent attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_cases import PAGE_SIZE, Case, ModelShape, difference
from ramet.kernels import gpu, reference
from ramet.kernels.gpu.attention import fold_partials
from ramet.kernels.gpu.attention_tile import SPAN
from ramet.kernels.gpu.mla import mla_decode, mla_partials
from ramet.runtime.attention import AttentionMetadata
from ramet.runtime.attention.gpu_backend import GpuAttentionBackend
from ramet.runtime.executor.randomness import uniforms
from ramet.runtime.forward import AttentionSpec, KVFormat, QuantizedKVPool


@dataclass(frozen=True, slots=True)
class OpShapes:
    """Sizes of what is not a dense model's."""

    vocab_size: int
    rows: tuple[int, ...]
    """Of logits, of linears' inputs and of experts' inputs."""
    kv_len: int
    num_experts: int
    top_k: int
    expert_inner: int
    expert_hidden: int
    latent_heads: int
    latent_rank: int
    rope_dim: int


SHAPES = OpShapes(151936, (1, 32, 256), 4096, 128, 8, 768, 2048, 128, 512, 64)
"""Qwen 3's vocabulary, Qwen3-30B-A3B's experts, DeepSeek-V3's attention."""
TINY_SHAPES = OpShapes(300, (2,), 20, 4, 2, 32, 32, 4, 32, 16)


def op_cases(
    models: Sequence[ModelShape], shapes: OpShapes, dtype: torch.dtype, device: torch.device
) -> Iterator[Case]:
    """Made one by one, as ``gpu_cases.cases``."""
    for rows in shapes.rows:
        yield from _sampling_cases(rows, shapes.vocab_size, device)
        yield _expert_case(rows, shapes, dtype, device)
    for model in models:
        for rows in shapes.rows:
            yield from _weight_cases(model, rows, dtype, device)
        for kv_format in ("fp8", "int8"):
            yield _cache_case(model, kv_format, shapes, dtype, device)
    yield _latent_case(shapes, dtype, device)


def _sampling_cases(rows: int, vocab_size: int, device: torch.device) -> Iterator[Case]:
    logits = 3 * torch.randn((rows, vocab_size), device=device)
    for name, (top_k, top_p, min_p) in {
        "whole": (0, 1.0, 0.0),
        "top_k 50": (50, 1.0, 0.0),
        "top_p 0.9": (0, 0.9, 0.0),
        "top_k 50, top_p 0.9, min_p 0.05": (50, 0.9, 0.05),
    }.items():
        numbers = torch.tensor([(0.8, top_p, min_p)] * rows, dtype=torch.float64, device=device)
        top_ks = torch.full((rows,), top_k, dtype=torch.int32, device=device)
        seeds = torch.arange(rows, device=device)
        params = gpu.DrawParams(
            torch.arange(rows, dtype=torch.int32, device=device), seeds, seeds, numbers, top_ks
        )

        def run(params: gpu.DrawParams = params) -> Tensor:
            drawn: Tensor = gpu.draw_tokens(logits, params)
            return drawn

        def wrong(params: gpu.DrawParams = params) -> float:
            drawn_with = torch.from_numpy(uniforms(list(range(rows)), list(range(rows)))).to(device)
            expected = reference.draw_tokens(logits, drawn_with, params.numbers, params.top_ks)
            return float((gpu.draw_tokens(logits, params) != expected).float().mean())

        def in_torch(top_k: int = top_k, top_p: float = top_p, min_p: float = min_p) -> Tensor:
            return _torch_draw(logits, top_k, top_p, min_p)

        yield Case(f"draw, {name}, {rows} rows", run, wrong, logits.numel() * 4, {"torch, sorting": in_torch})
    mask = torch.randint(-(2**31), 2**31, (rows, -(-vocab_size // 32)), dtype=torch.int32, device=device)

    def mask_error() -> float:
        masked, expected = logits.clone(), logits.clone()
        gpu.apply_bitmask(masked, 0, mask)
        reference.apply_bitmask(expected, 0, mask)
        return float(not torch.equal(masked, expected))

    masked = logits.clone()
    yield Case(
        f"grammar bitmask, {rows} rows",
        lambda: gpu.apply_bitmask(masked, 0, mask),
        mask_error,
        masked.numel() * 2 + mask.numel() * 4,
        {"torch": lambda: reference.apply_bitmask(masked, 0, mask)},
    )


def _torch_draw(logits: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """As samplers without a kernel do it: with a sort where a filter needs one."""
    probabilities = (logits / 0.8).softmax(-1)
    if top_k or top_p < 1.0:
        ordered, ids = probabilities.sort(-1, descending=True)
        if top_k:
            ordered[:, top_k:] = 0.0
        before = ordered.cumsum(-1) - ordered
        ordered[before >= top_p * ordered.sum(-1, keepdim=True)] = 0.0
        ordered[ordered < min_p * ordered[:, :1]] = 0.0
        return ids.gather(1, ordered.multinomial(1))
    return probabilities.multinomial(1)


def _expert_case(rows: int, shapes: OpShapes, dtype: torch.dtype, device: torch.device) -> Case:
    hidden, inner, count = shapes.expert_hidden, shapes.expert_inner, shapes.num_experts
    x = torch.randn((rows, hidden), dtype=dtype, device=device)
    weights = gpu.ExpertWeights(
        torch.randn((count, 2 * inner, hidden), dtype=dtype, device=device) * hidden**-0.5,
        torch.randn((count, hidden, inner), dtype=dtype, device=device) * inner**-0.5,
    )
    shares, chosen = torch.randn((rows, count), device=device).softmax(-1).topk(shapes.top_k, dim=-1)
    num_used = min(count, rows * shapes.top_k)

    def one_by_one() -> Tensor:
        return reference.fused_experts(x, weights.gate_up, weights.down, shares, chosen, "silu")

    return Case(
        f"experts, {rows} rows",
        lambda: gpu.fused_experts(x, weights, shares, chosen, "silu"),
        lambda: difference(gpu.fused_experts(x, weights, shares, chosen, "silu"), one_by_one()),
        num_used * 3 * inner * hidden * dtype.itemsize,
        {"torch, expert by expert": one_by_one},
    )


def _weight_cases(model: ModelShape, rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    x = torch.randn((rows, model.hidden), dtype=dtype, device=device)
    weight = torch.randn((model.intermediate, model.hidden), device=device) * model.hidden**-0.5
    plain = weight.to(dtype)
    ways: dict[str, tuple[tuple[Tensor, Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = {
        "int4": (reference.quantize_int4(weight), gpu.linear_int4, reference.linear_int4),
        "e4m3": (reference.quantize_rows_e4m3(weight), gpu.linear_e4m3, reference.linear_e4m3),
    }
    for name, (stored, linear, oracle) in ways.items():

        def run(stored: tuple[Tensor, Tensor] = stored, linear: Callable[..., Tensor] = linear) -> Tensor:
            return linear(x, *stored)

        def error(
            stored: tuple[Tensor, Tensor] = stored,
            linear: Callable[..., Tensor] = linear,
            oracle: Callable[..., Tensor] = oracle,
        ) -> float:
            return difference(linear(x, *stored), oracle(x, *stored))

        num_bytes = (
            sum(part.numel() * part.element_size() for part in stored) + 2 * x.numel() * x.element_size()
        )
        yield Case(
            f"{name} linear, {model.name}, {rows} rows",
            run,
            error,
            num_bytes,
            {"torch, not quantised": lambda: functional.linear(x, plain)},
        )


def _cache_case(
    model: ModelShape, kv_format: KVFormat, shapes: OpShapes, dtype: torch.dtype, device: torch.device
) -> Case:
    """Decoding over keys and values of eight bits, against the oracle over what is stored."""
    rows, kv_len = shapes.rows[-1] // 8 or 1, shapes.kv_len
    pages = -(-kv_len // PAGE_SIZE)
    pool = QuantizedKVPool(
        kv_format,
        num_layers=1,
        num_slots=rows * pages * PAGE_SIZE,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        device=device,
    )
    heads = pool.num_slots, model.num_kv_heads, model.head_dim
    filled = torch.randn((2, *heads), dtype=dtype, device=device)
    pool.write(0, torch.arange(pool.num_slots, device=device), filled[0], filled[1])
    backend = GpuAttentionBackend(
        pool,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        page_size=PAGE_SIZE,
        dtype=dtype,
        device=device,
    )
    table = torch.arange(rows * pages, dtype=torch.int32).view(rows, pages).numpy()
    plan = backend.plan(AttentionMetadata([1] * rows, [kv_len] * rows, table))
    q = torch.randn((rows, model.num_heads, model.head_dim), dtype=dtype, device=device)
    k, v = torch.randn((2, rows, *heads[1:]), dtype=dtype, device=device).unbind(0)
    spec = AttentionSpec(0, model.head_dim**-0.5)

    def error() -> float:
        out = plan(q, k, v, spec)
        keys, values = (part[:kv_len] for part in pool.dequantized(0))
        expected = reference.attention(q[:1], keys, values, scale=spec.scale, sliding_window=None, softcap=None)
        return difference(out[:1], expected)

    layer = pool.layer(0)
    num_bytes = rows * kv_len * sum(part[0].numel() * part.element_size() for part in layer)
    return Case(
        f"{model.name}: decode {rows} x {kv_len}, {kv_format} cache",
        lambda: plan(q, k, v, spec),
        error,
        num_bytes,
        {},
    )


def _latent_case(shapes: OpShapes, dtype: torch.dtype, device: torch.device) -> Case:
    rows, kv_len = shapes.rows[-1] // 8 or 1, shapes.kv_len
    rank, rope_dim, heads = shapes.latent_rank, shapes.rope_dim, shapes.latent_heads
    pages, spans = -(-kv_len // PAGE_SIZE), -(-kv_len // SPAN)
    cache = torch.randn((rows * pages * PAGE_SIZE, rank + rope_dim), dtype=dtype, device=device)
    table = torch.arange(rows * pages, dtype=torch.int32, device=device).view(rows, pages)
    joint = torch.randn((rows, heads, rank + rope_dim), dtype=dtype, device=device)
    latent, rope = joint.split_with_sizes([rank, rope_dim], 2)
    lens = torch.full((rows,), kv_len, dtype=torch.int32, device=device)
    folds = torch.tensor([(i, i * spans, spans) for i in range(rows)], dtype=torch.int32, device=device)
    partials, out = mla_partials(rows * spans, latent), torch.empty_like(latent.contiguous())
    scale = (rank + rope_dim) ** -0.5

    def run() -> Tensor:
        mla_decode(
            (latent, rope),
            cache,
            table,
            lens,
            partials,
            page_size=PAGE_SIZE,
            scale=scale,
            max_spans=spans,
        ).run()
        fold_partials(partials, folds, out).run()
        return out

    def error() -> float:
        own = cache[:kv_len]
        expected = reference.mla_decode(latent[0], rope[0], own[:, :rank], own[:, rank:], scale=scale)
        return difference(run()[0], expected)

    keys = cache.view(rows, pages * PAGE_SIZE, rank + rope_dim)[:, :kv_len]

    def in_torch() -> Tensor:
        scores = (joint @ keys.mT * scale).softmax(-1)
        found: Tensor = scores @ keys[..., :rank]
        return found

    return Case(
        f"latent decode {rows} x {kv_len}",
        run,
        error,
        rows * kv_len * (rank + rope_dim) * dtype.itemsize,
        {"torch": in_torch},
    )
