"""Attention backends: paged attention over the KV pool, planned once a step."""

from ramet.runtime.attention.base import AttentionBackend, AttentionMetadata
from ramet.runtime.attention.native_backend import HEAD_DIM_STEP, NativeAttentionBackend
from ramet.runtime.attention.torch_backend import TorchAttentionBackend

__all__ = [
    "HEAD_DIM_STEP",
    "AttentionBackend",
    "AttentionMetadata",
    "NativeAttentionBackend",
    "TorchAttentionBackend",
]
