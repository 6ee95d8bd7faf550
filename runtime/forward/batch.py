"""ForwardBatch: the tensors of one step. It is passed as an argument and dies with the step."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention is, apart from its tensors."""

    layer_id: int
    scale: float
    sliding_window: int | None = None
    """A query at position p sees keys at positions p - sliding_window + 1 .. p."""
    softcap: float | None = None
    """scores = softcap * tanh(scores / softcap), before the softmax (Gemma 2)."""


class AttentionPlan(Protocol):
    """Built once a step, called once a layer; valid for that step only."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Write k and v of every row into the KV pool, then attend.

        q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim], rope applied.
        Returns [num_tokens, num_heads, head_dim]. Causal within each row; nothing is seen across rows
        except through shared pages.
        """
        ...


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """All rows of a step, flattened: row after row."""

    input_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    attention: AttentionPlan
    logit_indices: Tensor  # [num_logits] int64, the tokens whose logits are wanted
