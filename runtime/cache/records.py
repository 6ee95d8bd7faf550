"""What the radix cache answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.runtime.cache.node import KvState, RadixNode
from ramet.runtime.protocol import ProgramTag


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest prefix that the tree holds: valid until the tree changes, or while ``node`` is locked."""

    node: RadixNode
    """The handle to lock: the node where the match ends (a root where nothing matched)."""
    num_tokens: int
    """Length of the prefix, a multiple of the page size; == node.end."""
    pages: list[int]
    """The pages of the match, from the end of the node where the search began."""


class PrefixProbe(NamedTuple):
    """What a match would find: valid until the tree changes, but ``node`` may serve as a hint for ever."""

    node: RadixNode | None
    """The deepest node that matches whole; None where none does."""
    num_tokens: int
    """Length of the match, a multiple of the page size."""
    cut: RadixNode | None
    """The child of ``node`` inside of which the match ends, where it does."""


@dataclass(frozen=True, slots=True)
class InsertResult:
    """Where an insert ended, and whose the pages are now."""

    node: RadixNode
    """The node that ends with the last inserted page: the handle to lock."""
    num_new_pages: int
    """The last this many of the inserted pages became the tree's; the caller no longer owns them."""
    duplicates: dict[int, int] = field(default_factory=dict)
    """Page index -> the tree's page for it, where the tree had another page with these tokens already. The
    given page is still the caller's, who switches to the tree's page and frees its own."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made, and sizes as they are now."""

    num_lookups: int
    """Calls of match() from a root."""
    num_hits: int
    """Those of them that found at least one page."""
    num_lookup_tokens: int
    """Token ids looked up by them."""
    num_hit_tokens: int
    """Those of the tokens that were found."""
    num_inserted_pages: int
    num_evicted_pages: int
    num_nodes: int
    num_cached_pages: int
    """Pages that the tree owns."""
    num_locked_pages: int
    """Those of them that cannot be evicted now."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as ``RadixCache.walk`` shows it; ``token_ids`` and ``pages`` are the node's own: only read."""

    depth: int
    """0 for a root."""
    salt: str
    start: int
    """Position of token_ids[0]."""
    token_ids: Sequence[int]
    pages: Sequence[int]
    num_children: int
    lock_count: int
    hit_count: int
    last_access: int
    tag: ProgramTag
    state: KvState
