"""The sparse MLP: a router picks a few experts for each token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramet.runtime.layers.linear import Linear
from ramet.runtime.layers.mlp import MLP


class SparseMLP:
    """sum over the chosen experts of weight * expert(x).

    The weights are the softmax over all experts, of which the ``num_experts_per_token`` largest are kept and,
    with ``normalize``, divided by their sum. Tokens are grouped by expert, and each token's experts are summed
    in the order of their weights, so a token's result depends on the others only as far as the projections'
    does.
    """

    def __init__(
        self, router: Linear, experts: Sequence[MLP], *, num_experts_per_token: int, normalize: bool
    ) -> None:
        """router: hidden_size -> len(experts)."""
        self._router = router
        self._experts = tuple(experts)
        self._top_k = num_experts_per_token
        self._normalize = normalize

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self._router(x).float().softmax(-1).topk(self._top_k, dim=-1)
        if self._normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        outputs = self._run(x, chosen)
        return (outputs * weights[:, :, None]).sum(1).to(x.dtype)

    def _run(self, x: Tensor, chosen: Tensor) -> Tensor:
        """chosen: [num_tokens, top_k] -> outputs of those experts: [num_tokens, top_k, hidden_size]."""
        flat = chosen.flatten()
        by_expert = flat.argsort(stable=True)
        counts = flat.bincount(minlength=len(self._experts)).tolist()
        grouped = x.index_select(0, by_expert // self._top_k)
        parts, start = [], 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                parts.append(expert(grouped[start : start + count]))
                start += count
        outputs = torch.empty_like(grouped)
        outputs[by_expert] = torch.cat(parts) if parts else grouped
        return outputs.view(x.shape[0], self._top_k, x.shape[1])
