"""Attention of a chunk: one row's many queries, over the keys before them and their own."""

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.attention.layout import ROW_STEP, ChunkCall, ChunkLayout, HeadLayout
from ramet.runtime.attention.partial import additive_mask, gather, partial_attention, share_by_log_sum_exp
from ramet.runtime.forward import AttentionSpec


class ChunkAttention:
    """The tensors of a ChunkLayout, made once a step."""

    def __init__(self, layout: ChunkLayout, heads: HeadLayout, *, device: torch.device) -> None:
        self._heads = heads
        self._num_tokens = layout.num_tokens
        self._num_spans = layout.num_spans
        self._rows = -(-layout.num_tokens * heads.group_size // ROW_STEP) * ROW_STEP
        self._calls = [
            _Call(call, layout.num_tokens, self._rows, heads.group_size, device) for call in layout.calls
        ]

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec) -> Tensor:
        """q: [num_tokens, num_heads, head_dim], the row's. Returns the same shape in fp32."""
        heads = self._heads
        num_tokens, used_rows = self._num_tokens, self._num_tokens * heads.group_size
        by_token = num_tokens, heads.num_kv_heads, heads.group_size, heads.head_dim
        # The queries of a KV head, token after token: [num_kv_heads, rows, head_dim], padded.
        queries = torch.empty((heads.num_kv_heads, self._rows, heads.head_dim), device=q.device)
        queries[:, used_rows:] = 0
        by_kv_head = heads.num_kv_heads, num_tokens, heads.group_size, heads.head_dim
        queries[:, :used_rows].view(by_kv_head).copy_(q.view(by_token).transpose(0, 1))
        results = [call.attend(queries, keys, values, spec) for call in self._calls]
        merged = results[0][0][0].transpose(0, 1)[:used_rows] if self._num_spans == 1 else self._merge(results)
        by_row = num_tokens, heads.group_size, heads.num_kv_heads, heads.head_dim
        return merged.reshape(by_row).transpose(1, 2).reshape(num_tokens, heads.num_heads, heads.head_dim)

    def _merge(self, results: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Partial results weighted by their shares of the softmax's denominator, added in span order:
        [num_tokens * group_size, num_kv_heads, head_dim]."""
        heads = self._heads
        rows = self._num_tokens * heads.group_size
        device = results[0][0].device
        weights = torch.full((self._num_spans, rows, heads.num_kv_heads), float("-inf"), device=device)
        for call, (_, lse) in zip(self._calls, results, strict=True):
            weights[call.spans, call.rows] = lse.transpose(1, 2)[:, call.result_rows]
        share_by_log_sum_exp(weights)
        merged = torch.zeros((rows, heads.num_kv_heads, heads.head_dim), device=device)
        for call, (out, _) in zip(self._calls, results, strict=True):
            part = merged[call.rows]
            by_row = out.transpose(1, 2)[:, call.result_rows]
            for index, weight in enumerate(weights[call.spans, call.rows].unbind(0)):
                part.addcmul_(by_row[index], weight[..., None])
        return merged


class _Call:
    """One ChunkCall. Its query rows begin and end at whole steps of ROW_STEP tokens, so that every count of
    rows is a multiple of it; the results of tokens outside of the call are dropped."""

    def __init__(
        self, call: ChunkCall, num_tokens: int, num_rows: int, group_size: int, device: torch.device
    ) -> None:
        first = call.first_token // ROW_STEP * ROW_STEP
        last = -(-call.last_token // ROW_STEP) * ROW_STEP
        begin, end = first * group_size, min(last * group_size, num_rows)
        self.spans = slice(call.spans.start, call.spans.stop)
        self.rows = slice(call.first_token * group_size, call.last_token * group_size)
        self.result_rows = slice(self.rows.start - begin, self.rows.stop - begin)
        self._query_rows = slice(begin, end)
        self._length = call.length
        self._slots = torch.from_numpy(call.slots).to(device)
        self._mask = None
        if call.visible is not None:
            visible = np.zeros((end - begin, call.length), np.bool_)
            visible[self.result_rows] = np.repeat(call.visible, group_size, axis=0)
            self._mask = additive_mask(visible, device)[None, None]

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec
    ) -> tuple[Tensor, Tensor]:
        """[spans, num_kv_heads, rows, head_dim] and [spans, num_kv_heads, rows]."""
        k, v = gather(keys, self._slots, self._length), gather(values, self._slots, self._length)
        q = queries[:, self._query_rows].expand(len(k), -1, -1, -1)
        return partial_attention(q, k, v, self._mask, scale=spec.scale, softcap=spec.softcap)
