"""Attention over one span of keys: reading it, its partial result, and what share of the whole that has."""

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.attention.layout import Bools

_FLASH_TILE_ROWS = 32
"""Query rows of one task of torch's CPU flash attention, at the fewest."""


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T) v over these keys alone, and log(sum(exp(q k^T))).

    q: [items, heads, rows, head_dim] fp32, rows a multiple of 4; k, v: [items, heads, keys, head_dim] fp32;
    mask: [items or 1, 1, rows or 1, keys], 0 or -inf, added to the scores. Returns ([items, heads, rows,
    head_dim], [items, heads, rows]). A row that sees no key has an undefined result.
    """
    if softcap is not None or not q.is_cpu:
        return _plain(q, k, v, mask, scale, softcap)
    items, heads, rows, _ = q.shape
    alone = items * heads == 1 and rows <= _FLASH_TILE_ROWS
    if alone:
        # A single task runs outside of torch's threads, where MKL uses its own and adds in another order.
        # A copy of it costs nothing: it runs beside it.
        q, k, v = q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, False, attn_mask=mask, scale=scale
    )
    return (out[:1], lse[:1]) if alone else (out, lse)


def gather(pool: Tensor, slots: Tensor, length: int) -> Tensor:
    """Spans of the pool in fp32: [len(slots) / length, num_kv_heads, length, head_dim].

    pool: [num_slots, num_kv_heads, head_dim]; slots: int64, spans of `length` one after another.
    """
    found = pool.index_select(0, slots).float()
    _, num_kv_heads, head_dim = found.shape
    row = num_kv_heads * head_dim
    # One call in place of view and transpose.
    return found.as_strided(
        (len(slots) // length, num_kv_heads, length, head_dim), (length * row, head_dim, row, 1)
    )


def additive_mask(visible: Bools, device: torch.device) -> Tensor:
    """0 where visible, -inf elsewhere; fp32, of the same shape."""
    mask = np.where(visible, np.float32(0), np.float32("-inf"))
    return torch.from_numpy(mask).to(device)


def share_by_log_sum_exp(lse: Tensor) -> None:
    """lse: [num_spans, ...] fp32, turned in place into each span's share: exp(lse) / sum(exp(lse)).

    -inf has no share and changes no other's last bit: cumsum adds in order, and zeros at the end add nothing.
    """
    lse.sub_(lse.amax(0)).exp_()
    lse.div_(lse.cumsum(0)[-1])


def _plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores.add_(mask)
    highest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(-1, keepdim=True)
    return torch.matmul(weights, v).div_(total), total.log_().add_(highest).squeeze(-1)
