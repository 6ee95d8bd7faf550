"""Attention of single queries: decoding rows and short drafts, all of a step's together."""

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.attention.layout import ROW_STEP, HeadLayout, SpanGroup, TokenwiseLayout
from ramet.runtime.attention.partial import additive_mask, gather, partial_attention, share_by_log_sum_exp
from ramet.runtime.forward import AttentionSpec


class TokenwiseAttention:
    """The tensors of a TokenwiseLayout, made once a step. Calls reuse buffers: one call at a time."""

    def __init__(
        self, layout: TokenwiseLayout, heads: HeadLayout, *, num_batch_tokens: int, device: torch.device
    ) -> None:
        self._groups = [_Group(group, heads, num_batch_tokens, device) for group in layout.groups]
        num_partials = sum(group.num_items * group.num_queries for group in layout.groups)
        self._num_spans = len(layout.partials)
        self._partials = None
        if not np.array_equal(layout.partials.reshape(-1), np.arange(num_partials)):
            self._partials = torch.from_numpy(layout.partials.reshape(-1)).to(device)
        self._padding = None
        if layout.padding.any():
            self._padding = torch.from_numpy(layout.padding)[..., None].to(device)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
        """q: all of the batch's queries. Returns the layout's: [num_tokens, num_heads, head_dim] fp32."""
        results = [group.attend(q, keys, values, spec) for group in self._groups]
        outs = self._by_span(
            [group.by_query(out) for group, (out, _) in zip(self._groups, results, strict=True)]
        )
        if self._num_spans == 1:
            return outs.squeeze(0)
        log_sums = self._by_span(
            [group.by_query(lse.unsqueeze(-1)) for group, (_, lse) in zip(self._groups, results, strict=True)]
        )
        if self._padding is not None:
            log_sums = log_sums.masked_fill(self._padding[..., None], float("-inf"))
        share_by_log_sum_exp(log_sums)
        merged, *others = outs.unbind(0)
        first_share, *shares = log_sums.unbind(0)
        merged.mul_(first_share)
        for out, share in zip(others, shares, strict=True):
            merged.addcmul_(out, share)
        return merged

    def _by_span(self, results: list[Tensor]) -> Tensor:
        """The groups' partial results, [pairs, num_heads, size] each, as [num_spans, num_tokens, num_heads,
        size]."""
        joined = results[0] if len(results) == 1 else torch.cat(results)
        if self._partials is not None:
            joined = joined.index_select(0, self._partials)
        return joined.view(self._num_spans, -1, *joined.shape[1:])


class _Group:
    def __init__(
        self, group: SpanGroup, heads: HeadLayout, num_batch_tokens: int, device: torch.device
    ) -> None:
        self._heads = heads
        self._num_queries = group.num_queries
        self._length = group.length
        self._tokens = None
        if not np.array_equal(group.tokens, np.arange(num_batch_tokens)):
            self._tokens = torch.from_numpy(group.tokens).to(device)
        self._slots = torch.from_numpy(group.slots).to(device)
        self._mask = None if group.visible is None else additive_mask(group.visible, device)[:, None, None]
        self._used_rows = group.num_queries * heads.group_size
        rows = -(-self._used_rows // ROW_STEP) * ROW_STEP
        self._queries = torch.zeros((group.num_items, heads.num_kv_heads, rows, heads.head_dim), device=device)
        self._used_queries = self._split(self._queries)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
        """The group's partial results, as ``partial_attention`` returns them."""
        if self._tokens is not None:
            q = q.index_select(0, self._tokens)
        self._used_queries.copy_(q.view(self._used_queries.shape))
        k, v = gather(keys, self._slots, self._length), gather(values, self._slots, self._length)
        return partial_attention(self._queries, k, v, self._mask, scale=spec.scale, softcap=spec.softcap)

    def by_query(self, rows: Tensor) -> Tensor:
        """[items, num_kv_heads, rows, size] -> [items * queries, num_heads, size]."""
        return self._split(rows).reshape(-1, self._heads.num_heads, rows.shape[-1])

    def _split(self, rows: Tensor) -> Tensor:
        """[items, num_kv_heads, rows, size] -> a view without padding rows: [items, queries, num_kv_heads,
        group_size, size], or without the dimension of queries where there is one query."""
        used = rows.narrow(2, 0, self._used_rows)
        if self._num_queries == 1:
            return used
        items, num_kv_heads, _, size = rows.shape
        shape = items, num_kv_heads, self._num_queries, self._heads.group_size, size
        return used.view(shape).transpose(1, 2)
