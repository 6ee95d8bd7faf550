"""One layer of a decoder: attention and MLP between norms."""

from torch import Tensor

from ramet.runtime.forward import AttentionPlan
from ramet.runtime.layers.attention import AttentionBlock
from ramet.runtime.layers.mlp import MLP
from ramet.runtime.layers.norm import RMSNorm


class DecoderLayer:
    """Pre-norm residual layer; with output norms (Gemma 2 and 3) each block's output is normed before it is
    added.

    What a layer hands on is its last output, not yet added, beside the residual stream: the next norm adds it.
    """

    def __init__(
        self,
        attention: AttentionBlock,
        mlp: MLP,
        *,
        attention_norm: RMSNorm,
        mlp_norm: RMSNorm,
        output_norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> None:
        """attention_norm, mlp_norm: before each block. output_norms: after attention and after the MLP."""
        self._attention = attention
        self._mlp = mlp
        self._attention_norm = attention_norm
        self._mlp_norm = mlp_norm
        self._output_norms = output_norms

    def __call__(
        self,
        pending: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """pending: [num_tokens, hidden_size], still to be added to residual (None: the embeddings, nothing to
        add to).

        Returns the next (pending, residual). With ``rows`` ([num_rows] int64) only those tokens go on after
        attention, and the results have num_rows rows: what no one reads of the last layer is not computed.
        """
        if residual is None:
            normed, residual = self._attention_norm(pending), pending
        else:
            normed, residual = self._attention_norm.add(pending, residual)
        attended = self._attention(normed, *rope, plan)
        if rows is not None:
            attended, residual = attended.index_select(0, rows), residual.index_select(0, rows)
        if self._output_norms is None:
            normed, residual = self._mlp_norm.add(attended, residual)
            return self._mlp(normed), residual
        after_attention, after_mlp = self._output_norms
        normed, residual = self._mlp_norm.add(after_attention(attended), residual)
        return after_mlp(self._mlp(normed)), residual
