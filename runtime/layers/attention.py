"""The attention block: projections, head norms and rope around the step's attention plan."""

from torch import Tensor

from ramet.kernels import apply_rope
from ramet.runtime.forward import AttentionPlan, AttentionSpec
from ramet.runtime.layers.linear import Linear
from ramet.runtime.layers.norm import RMSNorm


class AttentionBlock:
    """q, k and v are one projection, in that order of channels, each head after head."""

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        spec: AttentionSpec,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        head_norms: tuple[RMSNorm, RMSNorm] | None = None,
    ) -> None:
        """head_norms: of q and of k, over each head before rope (Qwen 3, Gemma 3)."""
        self._qkv = qkv
        self._output = output
        self._spec = spec
        self._heads = [num_heads, num_kv_heads, num_kv_heads]
        self._num_all_heads = num_heads + 2 * num_kv_heads
        self._head_dim = head_dim
        self._head_norms = head_norms

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        """x: [num_tokens, hidden_size]; cos, sin: [num_tokens, rotary_dim / 2] fp32. Returns x's shape.

        The plan writes k and v into the KV pool. q, k and v reach it as views of one tensor where no op made a
        new one.
        """
        num_tokens = x.shape[0]
        heads = self._qkv(x).view(num_tokens, self._num_all_heads, self._head_dim)
        q, k, v = heads.split_with_sizes(self._heads, 1)
        if self._head_norms is not None:
            q_norm, k_norm = self._head_norms
            q, k = q_norm(q), k_norm(k)
        q, k = apply_rope(q, k, cos, sin)
        return self._output(plan(q, k, v, self._spec).reshape(num_tokens, -1))
