"""Attention backends: paged attention over the KV pool, planned once a step."""

from ramet.runtime.attention.base import AttentionBackend, AttentionMetadata
from ramet.runtime.attention.torch_backend import TorchAttentionBackend

__all__ = ["AttentionBackend", "AttentionMetadata", "TorchAttentionBackend"]
