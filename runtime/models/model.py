"""What the executor asks of a model."""

from typing import Protocol

from torch import Tensor

from ramet.runtime.forward import ForwardBatch
from ramet.runtime.models.config import ModelConfig


class Model(Protocol):
    """A causal decoder that attends through the batch's plan."""

    @property
    def config(self) -> ModelConfig:
        """num_layers, num_kv_heads and head_dim say what KV pool its plans need."""
        ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits of the tokens at batch.logit_indices: [num_logits, vocab_size] fp32, soft cap applied.

        The caller has switched gradients off (torch.inference_mode). KV of every token is written by the plan.
        """
        ...
