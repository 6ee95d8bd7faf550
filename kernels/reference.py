"""Torch oracles: what every op means. Plain, any device; tests compare the fast versions with these."""

import torch
from torch import Tensor

INT8_GROUP = 32
"""Inputs of a linear layer that share one scale of their digits, in ``linear_int8_grouped``."""


INT4_GROUP = 32
"""Neighbouring 4-bit weights that share a scale."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (arXiv 1910.07467), computed in fp32.

    x: [..., hidden]; weight: [hidden]. Gemma's ``1 + weight`` is folded into the weight when it is loaded.
    """
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """residual + x, and its norm: (normed, new_residual)."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding (arXiv 2104.09864), the half-split ("NeoX") pairing.

    q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim];
    cos, sin: [num_tokens, rotary_dim / 2] fp32. Dimensions from rotary_dim on pass through.
    """
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """act(gate) * up. gate_up: [num_tokens, 2 * intermediate], gate first. kind: "silu" or "gelu_tanh"."""
    gate, up = gate_up.chunk(2, dim=-1)
    if kind == "silu":
        return torch.nn.functional.silu(gate) * up
    if kind == "gelu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    raise ValueError(f"unknown activation {kind!r}: silu or gelu_tanh")


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, sliding_window: int | None, softcap: float | None
) -> Tensor:
    """One row's causal attention; the queries are the last positions of the keys.

    q: [query_len, num_heads, head_dim]; k, v: [kv_len, num_kv_heads, head_dim] with kv_len >= query_len.
    Returns [query_len, num_heads, head_dim].
    """
    query_len, num_heads, _ = q.shape
    kv_len, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    k32 = k.float().repeat_interleave(group, dim=1)
    v32 = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k32) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    query_pos = torch.arange(kv_len - query_len, kv_len, device=q.device)[:, None]
    key_pos = torch.arange(kv_len, device=q.device)[None, :]
    visible = key_pos <= query_pos
    if sliding_window is not None:
        visible &= key_pos > query_pos - sliding_window
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v32).to(q.dtype)


def quantize_rows_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 with one scale a row: (q [rows, k] int8, scale [rows] fp32), x ~ q * scale[:, None]."""
    scale = x.float().abs().amax(-1).clamp_min(1e-12) / 127.0
    return torch.round(x.float() / scale[:, None]).clamp(-127, 127).to(torch.int8), scale


def linear_int8(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T with int8 weights (one scale an output channel) and activations of two int8 digits (one
    scale a token): x ~ (high + low / 254) * scale, both digits from -127 to 127.

    x: [num_tokens, k]; weight: [n, k] int8; weight_scale: [n] fp32. The sums over k are exact (int32), so a
    token's result does not depend on the tokens beside it.
    """
    x32 = x.float()
    scale = x32.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127.0
    high = torch.round(x32 / scale).clamp(-127, 127)
    low = torch.round((x32 / scale - high) * 254.0).clamp(-127, 127)
    columns = weight.double().t()
    total = (high.double() @ columns + (low.double() @ columns) / 254.0).to(torch.float32)
    out = total * scale * weight_scale
    return (out if bias is None else out + bias).to(x.dtype)


def quantize_heads_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 with one scale over the last dimension: (q int8, scale fp32 of x's shape without it).
    Zeros have the scale 0."""
    scale = x.float().abs().amax(-1) / 127.0
    levels = x.float() / torch.where(scale == 0.0, 1.0, scale)[..., None]
    return torch.round(levels).clamp(-127, 127).to(torch.int8), scale


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """GGUF's Q4_0 of [n, k] weights: groups of 32 along k with one scale, digits 0 to 15 less 8.

    k: a multiple of 32. Returns (packed [n, k / 2] uint8, scale [n, k / 32] fp32): byte 16 g + j of a row has
    weight 32 g + j in its low digit and weight 32 g + j + 16 in its high one.
    """
    groups = weight.float().view(weight.shape[0], -1, 32)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    # The weight of the largest magnitude becomes exactly -8.
    scale = extreme / -8.0
    levels = groups / torch.where(scale == 0.0, 1.0, scale)
    digits = (torch.round(levels).clamp(-8, 7) + 8).to(torch.uint8)
    packed = digits[..., :16] | (digits[..., 16:] << 4)
    return packed.flatten(1), scale[..., 0]


def dequantize_int4(packed: Tensor, scale: Tensor) -> Tensor:
    """[n, k] fp32 of what ``quantize_int4`` returns."""
    groups = packed.view(packed.shape[0], -1, 16)
    digits = torch.cat((groups & 15, groups >> 4), dim=-1)
    return ((digits.float() - 8.0) * scale.float()[..., None]).flatten(1)


def linear_int4(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T in fp32, with weights of ``quantize_int4``. Returns x's dtype."""
    return _linear(x, dequantize_int4(weight, weight_scale), bias)


def to_e4m3(x: Tensor) -> Tensor:
    """The nearest numbers of OCP's e4m3 (4 exponent and 3 mantissa bits, up to 448), as uint8."""
    return x.float().clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def from_e4m3(codes: Tensor) -> Tensor:
    """fp32 of e4m3 codes."""
    return codes.view(torch.float8_e4m3fn).float()


def quantize_rows_e4m3(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(codes [n, k] uint8, scale [n] fp32): the largest magnitude of a row is 448."""
    scale = weight.float().abs().amax(-1).clamp_min(1e-12) / 448.0
    return to_e4m3(weight.float() / scale[:, None]), scale


def linear_e4m3(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T in fp32, with weights of ``quantize_rows_e4m3``. Returns x's dtype."""
    return _linear(x, from_e4m3(weight) * weight_scale[:, None], bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.float() @ weight.t()
    return (out if bias is None else out + bias).to(x.dtype)


def linear_int8_grouped(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T with int8 weights (one scale an output channel) and activations of one int8 digit (one scale
    for INT8_GROUP inputs of a token). Arguments as of ``linear_int8``; a group's sums are exact.
    """
    num_tokens, depth = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, -depth % INT8_GROUP)).view(num_tokens, -1, INT8_GROUP)
    largest = padded.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < 1e-28, torch.inf, largest)
    digits = torch.round(padded * (127.0 / largest)).double()
    scale = torch.where(largest.isinf(), 0.0, largest / 127.0).double()
    total = (digits * scale).view(num_tokens, -1)[:, :depth] @ weight.double().t()
    out = total.to(torch.float32) * weight_scale
    return (out if bias is None else out + bias).to(x.dtype)


def fused_experts(
    x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, chosen: Tensor, kind: str
) -> Tensor:
    """sum over i of shares[t, i] * down_e(act(gate_e(x_t)) * up_e(x_t)), e = chosen[t, i].

    x: [num_tokens, hidden]; gate_up: [num_experts, 2 * intermediate, hidden], gate's channels first; down:
    [num_experts, hidden, intermediate]; shares, chosen: [num_tokens, top_k] fp32, int64; kind: see
    ``gated_activation``. Returns x's shape and dtype.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for rank in range(chosen.shape[1]):
        for expert in sorted(set(chosen[:, rank].tolist())):
            rows = torch.nonzero(chosen[:, rank] == expert)[:, 0]
            inner = (x[rows].float() @ gate_up[expert].float().t()).to(x.dtype)
            part = gated_activation(inner, kind).float() @ down[expert].float().t()
            out[rows] += part * shares[rows, rank, None].float()
    return out.to(x.dtype)


def mla_decode(q_latent: Tensor, q_rope: Tensor, latent: Tensor, rope: Tensor, *, scale: float) -> Tensor:
    """One row's attention over latent keys and values (DeepSeek-V2's MLA, arXiv 2405.04434, with the
    up-projections absorbed into the query and the output).

    q_latent: [num_heads, rank]; q_rope: [num_heads, rope_dim]; latent: [kv_len, rank], keys and values of all
    heads; rope: [kv_len, rope_dim], the keys' rotated part. Returns [num_heads, rank].
    """
    scores = (q_latent.float() @ latent.float().t() + q_rope.float() @ rope.float().t()) * scale
    return (scores.softmax(-1) @ latent.float()).to(q_latent.dtype)


def apply_bitmask(logits: Tensor, first: int, mask: Tensor) -> None:
    """Set rows first.. of ``logits`` to -inf where their bit is 0.

    logits: [num_rows, vocab_size] fp32, changed in place; mask: [m, ceil(vocab_size / 32) or more] int32 on the
    same device, bit t % 32 of word t // 32 for token t.
    """
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((mask[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]]
    logits[first : first + mask.shape[0]].masked_fill_(allowed == 0, float("-inf"))


def draw_tokens(logits: Tensor, uniforms: Tensor, numbers: Tensor, top_ks: Tensor) -> Tensor:
    """One token a row: [num_rows] int64. The filters are applied in the order top_k, top_p, min_p.

    logits: [num_rows, vocab_size], a finite maximum in each; uniforms: [num_rows] fp64 in [0, 1), inverted
    through the cumulative distribution of what is kept, ids ascending; numbers: [num_rows, 3] fp64:
    temperature, top_p (the smallest set, most probable first and ties to the lower id, that holds this share),
    min_p (of the most probable token's probability); top_ks: [num_rows], 0 for all.
    """
    chosen = []
    for row, uniform, (temperature, top_p, min_p), top_k in zip(
        logits.double(), uniforms.tolist(), numbers.tolist(), top_ks.tolist(), strict=True
    ):
        weights = ((row - row.max()) / temperature).exp()
        order = row.argsort(descending=True, stable=True)
        if top_k:
            weights[order[top_k:]] = 0.0
        if top_p < 1.0:
            before = weights[order].cumsum(0) - weights[order]
            weights[order[before >= top_p * weights.sum()]] = 0.0
        weights[weights < min_p] = 0.0
        cumulative = weights.cumsum(0)
        chosen.append(int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)))
    return torch.tensor(chosen, dtype=torch.int64, device=logits.device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
