"""The radix cache: which pages of the KV pool hold which token prefixes. No tensors here."""

from ramet.runtime.cache.allocator import PageAccountingError, PageAllocator
from ramet.runtime.cache.eviction import EvictionPolicy, LfuEviction, LruEviction, ProgramLruEviction
from ramet.runtime.cache.node import KvState, RadixNode
from ramet.runtime.cache.outline import CacheOutline, NodeOutline
from ramet.runtime.cache.radix_cache import RadixCache
from ramet.runtime.cache.records import CacheStats, InsertResult, NodeView, PrefixMatch, PrefixProbe

__all__ = [
    "CacheOutline",
    "CacheStats",
    "EvictionPolicy",
    "InsertResult",
    "KvState",
    "LfuEviction",
    "LruEviction",
    "NodeOutline",
    "NodeView",
    "PageAccountingError",
    "PageAllocator",
    "PrefixMatch",
    "PrefixProbe",
    "ProgramLruEviction",
    "RadixCache",
    "RadixNode",
]
