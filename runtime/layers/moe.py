"""The sparse MLP: a router picks a few experts for each token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ramet.kernels import fused_experts
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
        weights, chosen = _route(self._router, x, self._top_k, self._normalize)
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


class FusedSparseMLP:
    """``SparseMLP`` with all experts' weights together, for devices that have a kernel for it: a step costs a
    few launches instead of some for each expert, and the host does not wait to know who was chosen.
    """

    def __init__(
        self,
        router: Linear,
        weights: tuple[Tensor, Tensor],
        scales: tuple[Tensor, Tensor] | None,
        *,
        activation: str,
        num_experts_per_token: int,
        normalize: bool,
    ) -> None:
        """weights, scales: see ``kernels.fused_experts``."""
        self._router = router
        self._weights = weights[0].contiguous(), weights[1].contiguous()
        self._scales = None if scales is None else (scales[0].contiguous(), scales[1].contiguous())
        self._activation = activation
        self._top_k = num_experts_per_token
        self._normalize = normalize

    def __call__(self, x: Tensor) -> Tensor:
        shares, chosen = _route(self._router, x, self._top_k, self._normalize)
        return fused_experts(x, self._weights, self._scales, shares, chosen, self._activation)


def _route(router: Linear, x: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """The chosen experts' shares and numbers, [num_tokens, top_k] each, the largest first."""
    shares, chosen = router(x).float().softmax(-1).topk(top_k, dim=-1)
    if normalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares, chosen
