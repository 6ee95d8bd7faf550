"""An AttentionPlan without a KV pool: every sequence keeps its keys and values as one tensor a layer.

For checks of a model apart from caches: tests, and the self-test of what runs through transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ramet.kernels import attention
from ramet.runtime.forward import AttentionSpec, ForwardBatch


@dataclass(slots=True)
class DenseSequence:
    """KV of one sequence: layer -> (K, V), each [num_computed_tokens, num_kv_heads, head_dim]; plans append."""

    num_computed_tokens: int = 0
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def copy(self) -> "DenseSequence":
        """A branch that shares what was computed so far (tensors are replaced, never written into)."""
        return DenseSequence(self.num_computed_tokens, dict(self.layers))


class DensePlan:
    """Row i of the batch holds the next lengths[i] tokens of sequences[i]."""

    def __init__(self, sequences: Sequence[DenseSequence], lengths: Sequence[int]) -> None:
        self._rows = list(zip(sequences, lengths, strict=True))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        outputs, start = [], 0
        for sequence, length in self._rows:
            rows = slice(start, start + length)
            keys, values = k[rows], v[rows]
            if spec.layer_id in sequence.layers:
                past_keys, past_values = sequence.layers[spec.layer_id]
                keys, values = torch.cat((past_keys, keys)), torch.cat((past_values, values))
            sequence.layers[spec.layer_id] = keys.clone(), values.clone()
            outputs.append(
                attention(
                    q[rows],
                    keys,
                    values,
                    scale=spec.scale,
                    sliding_window=spec.sliding_window,
                    softcap=spec.softcap,
                )
            )
            start += length
        return torch.cat(outputs)


def dense_batch(
    rows: Sequence[tuple[DenseSequence, Sequence[int]]], device: torch.device, *, all_logits: bool = True
) -> ForwardBatch:
    """A batch of the next tokens of some sequences, and the sequences counted on past them.

    all_logits: of every token, or of each row's last.
    """
    positions: list[int] = []
    lasts: list[int] = []
    for sequence, token_ids in rows:
        positions += range(sequence.num_computed_tokens, sequence.num_computed_tokens + len(token_ids))
        sequence.num_computed_tokens += len(token_ids)
        lasts.append(len(positions) - 1)
    return ForwardBatch(
        input_ids=torch.tensor([token for _, token_ids in rows for token in token_ids], device=device),
        positions=torch.tensor(positions, device=device),
        attention=DensePlan([sequence for sequence, _ in rows], [len(token_ids) for _, token_ids in rows]),
        logit_indices=torch.tensor(list(range(len(positions))) if all_logits else lasts, device=device),
    )
