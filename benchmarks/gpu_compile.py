"""What the GPU kernels take of an architecture's registers and shared memory, compiled without one.

A spilled register is memory traffic that no one asked for: the table says where one is.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from ramet.kernels.gpu.activation import activation_launch
from ramet.kernels.gpu.attention import (
    AttentionOp,
    Partials,
    decode_attention,
    extend_attention,
    fold_partials,
    tree_attention,
)
from ramet.kernels.gpu.experts import Blocks, ExpertWeights, down_launch, gate_up_launch, sum_launch
from ramet.kernels.gpu.launch import Launch
from ramet.kernels.gpu.linear_int8 import digits_launch, product_launch
from ramet.kernels.gpu.linear_weight_only import e4m3_launch, int4_launch
from ramet.kernels.gpu.mla import mla_decode, mla_partials
from ramet.kernels.gpu.rope import rope_launch, write_kv
from ramet.kernels.gpu.row_norm import norm_launch
from ramet.kernels.gpu.sampling import CAPACITY, DrawParams, bitmask_launch, draw_launch

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
HEAD_DIMS = (64, 80, 96, 128, 256)
NUM_TOKENS, NUM_HEADS, NUM_KV_HEADS, HIDDEN, INTERMEDIATE = 64, 32, 8, 4096, 14336
"""Llama 3 8B's, but for the head size."""
VOCAB = 151936
"""Qwen 3's."""


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread and one program take. ``spilled``: bytes of a thread's stack (NVIDIA), vector registers
    kept in memory (AMD)."""

    kernel: str
    target: str
    registers: int
    spilled: int
    shared_bytes: int


def launches(
    dtype: torch.dtype = torch.bfloat16, head_dims: tuple[int, ...] = HEAD_DIMS
) -> Iterator[tuple[str, Launch]]:
    """Every kernel as it is shipped, by name; its tensors have shapes and no memory."""
    for head_dim in head_dims:
        yield from _attention(head_dim, dtype, AttentionOp(16, head_dim**-0.5), "")
    op = AttentionOp(16, 0.0625, sliding_window=4096, softcap=50.0)
    yield from _attention(head_dims[-1], dtype, op, ", window, soft cap")
    for name, stored in (("e4m3 cache", torch.uint8), ("int8 cache", torch.int8)):
        yield from _attention(128, dtype, AttentionOp(16, 128**-0.5), f", {name}", stored)
    yield from _elementwise(dtype)
    yield from _weight_only(dtype)
    yield from _experts(dtype)
    yield from _latent(dtype)
    yield from _sampling()


def compile_for(name: str, launch: Launch, target: str) -> Resources:
    """Compile for one of TARGETS; raises what triton raises."""
    kernel = triton.compile(launch.source(), target=GPUTarget(*TARGETS[target]), options=launch.options)
    if "cubin" in kernel.asm:
        registers, spilled = _cubin_resources(kernel.asm["cubin"])
    else:
        registers, spilled = (
            _number(rf"\.{entry}:\s+(\d+)", kernel.asm["amdgcn"])
            for entry in ("vgpr_count", "vgpr_spill_count")
        )
    return Resources(
        kernel=name, target=target, registers=registers, spilled=spilled, shared_bytes=kernel.metadata.shared
    )


def _attention(
    head_dim: int, dtype: torch.dtype, op: AttentionOp, suffix: str, stored: torch.dtype | None = None
) -> Iterator[tuple[str, Launch]]:
    """stored: how the cache holds keys and values; None: as dtype."""
    q = _meta(NUM_TOKENS, NUM_HEADS, head_dim, dtype=dtype)
    keys = _meta(4096, NUM_KV_HEADS, head_dim, dtype=stored or dtype)
    scales = _meta(4096, NUM_KV_HEADS, dtype=torch.float32)
    cache = (keys, keys, scales, scales) if stored is torch.int8 else (keys, keys)
    table = _ints(NUM_TOKENS, 256)
    partials = Partials.empty(512, q)
    name = f"head {head_dim}{suffix}"
    yield f"decode, {name}", decode_attention(q, cache, table, _ints(NUM_TOKENS), partials, op, max_spans=16)
    yield f"tree, {name}", tree_attention(q, cache, table, _ints(64, 4), _ints(512, 3), partials, op)
    yield f"extend, {name}", extend_attention(q, cache, table, _ints(64, 4), q, op)
    if stored is not None:
        k = _meta(NUM_TOKENS, NUM_KV_HEADS, head_dim, dtype=dtype)
        yield f"cache write, {name}", write_kv(k, k, _meta(NUM_TOKENS, dtype=torch.int64), cache)
    if not suffix:
        yield f"fold, {name}", fold_partials(partials, _ints(NUM_TOKENS, 3), q)


def _elementwise(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    x, weight = _meta(NUM_TOKENS, HIDDEN, dtype=dtype), _meta(HIDDEN, dtype=torch.float32)
    yield "rms norm", norm_launch(x, None, weight, 1e-5, (x, x))
    yield "add + rms norm", norm_launch(x, x, weight, 1e-5, (_meta(*x.shape, dtype=dtype), x))
    yield (
        "gated activation",
        activation_launch(
            _meta(NUM_TOKENS, 2 * INTERMEDIATE, dtype=dtype),
            "silu",
            _meta(NUM_TOKENS, INTERMEDIATE, dtype=dtype),
        ),
    )
    digits, scale = _meta(2, NUM_TOKENS, HIDDEN, dtype=torch.int8), _meta(NUM_TOKENS, dtype=torch.float32)
    int8_weight = _meta(HIDDEN, HIDDEN, dtype=torch.int8), weight
    yield "int8 digits", digits_launch(x, digits, scale)
    yield "int8 linear", product_launch((digits, scale), int8_weight, None, x)
    q, k = _meta(NUM_TOKENS, NUM_HEADS, 128, dtype=dtype), _meta(NUM_TOKENS, NUM_KV_HEADS, 128, dtype=dtype)
    angles = _meta(NUM_TOKENS, 64, dtype=torch.float32)
    cache = _meta(4096, NUM_KV_HEADS, 128, dtype=dtype)
    slots = _meta(NUM_TOKENS, dtype=torch.int64)
    yield "rope", rope_launch((q, q), (k, k), (angles, angles))
    yield "rope + cache write", rope_launch((q, q), (k, cache), (angles, angles), slots=slots, v=(k, cache))
    yield "cache write", write_kv(k, k, slots, (cache, cache))


def _weight_only(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    x = _meta(NUM_TOKENS, HIDDEN, dtype=dtype)
    int4 = _meta(HIDDEN, HIDDEN // 2, dtype=torch.uint8), _meta(HIDDEN, HIDDEN // 32, dtype=torch.float32)
    e4m3 = _meta(HIDDEN, HIDDEN, dtype=torch.uint8), _meta(HIDDEN, dtype=torch.float32)
    yield "int4 linear", int4_launch(x, int4, None, x)
    yield "e4m3 linear", e4m3_launch(x, e4m3, None, x)


def _experts(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """Qwen3-30B-A3B's."""
    num_experts, inner, hidden, top_k = 128, 768, 2048, 8
    x, shares = _meta(NUM_TOKENS, hidden, dtype=dtype), _meta(NUM_TOKENS, top_k, dtype=torch.float32)
    longs = _meta(NUM_TOKENS * top_k, dtype=torch.int64)
    blocks = Blocks(longs, longs, longs, longs)
    activated = _meta(NUM_TOKENS * top_k, inner, dtype=dtype)
    parts = _meta(NUM_TOKENS * top_k, hidden, dtype=torch.float32)
    for name, stored in (("", dtype), (", int8", torch.int8)):
        gate_up = _meta(num_experts, 2 * inner, hidden, dtype=stored)
        down = _meta(num_experts, hidden, inner, dtype=stored)
        scales: list[Tensor | None] = [None, None]
        if stored is torch.int8:
            scales = [_meta(*x.shape[:2], dtype=torch.float32) for x in (gate_up, down)]
        weights = ExpertWeights(gate_up, down, *scales)
        yield f"experts, gate and up{name}", gate_up_launch(x, weights, blocks, top_k, "silu", activated)
        yield f"experts, down{name}", down_launch(activated, weights, blocks, parts)
    yield "experts, sum", sum_launch(parts, shares, x)


def _latent(dtype: torch.dtype) -> Iterator[tuple[str, Launch]]:
    """DeepSeek-V2's and V3's."""
    latent, rope = _meta(NUM_TOKENS, 128, 512, dtype=dtype), _meta(NUM_TOKENS, 128, 64, dtype=dtype)
    partials = mla_partials(NUM_TOKENS * 16, latent)
    decode = mla_decode(
        (latent, rope),
        _meta(4096, 576, dtype=dtype),
        _ints(NUM_TOKENS, 256),
        _ints(NUM_TOKENS),
        partials,
        page_size=16,
        scale=0.1,
        max_spans=16,
    )
    yield "latent decode", decode
    yield "fold, latent", fold_partials(partials, _ints(NUM_TOKENS, 3), latent)


def _sampling() -> Iterator[tuple[str, Launch]]:
    logits, longs = _meta(NUM_TOKENS, VOCAB, dtype=torch.float32), _meta(NUM_TOKENS, dtype=torch.int64)
    numbers = _meta(NUM_TOKENS, 3, dtype=torch.float64)
    params = DrawParams(_ints(NUM_TOKENS), longs, longs, numbers, _ints(NUM_TOKENS))
    maxima = _meta(NUM_TOKENS, -(-VOCAB // 64), dtype=torch.float32)
    candidates = _meta(NUM_TOKENS, CAPACITY, dtype=torch.float32), _ints(NUM_TOKENS, CAPACITY)
    yield "draw tokens", draw_launch(logits, params, longs, maxima, candidates)
    yield "grammar bitmask", bitmask_launch(logits, _ints(NUM_TOKENS, VOCAB // 32))


def _cubin_resources(cubin: bytes) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern}")
    return int(found[1])


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _ints(*shape: int) -> Tensor:
    return _meta(*shape, dtype=torch.int32)
