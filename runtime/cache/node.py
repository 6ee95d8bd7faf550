"""RadixNode: a run of whole pages on the way from a root to a leaf of the radix tree."""

from enum import IntEnum

from ramet.runtime.protocol import ProgramTag

PageKey = int | tuple[int, ...]
"""The token ids of one page: what tells the children of a node apart. An int where a page is one token."""


class KvState(IntEnum):
    """How far the KV of a node may be trusted."""

    PENDING = 0
    """The step in flight is to write it: only rows of that step may read it."""
    WRITTEN = 1
    VERIFIED = 2
    """A token was sampled from it, so it held finite numbers."""


class RadixNode:
    """``token_ids`` (a multiple of the page size, never empty save in a root) and the pages with their KV.

    Owned and mutated by ``RadixCache`` alone; for others it is a handle and a record to read. A locked node
    stays in the tree, and so does its path to the root: it may be cut in two, and then the handle keeps the
    lower part, so ``end`` and what the path spells do not change while it is locked.
    """

    __slots__ = (
        "children",
        "end",
        "hit_count",
        "is_queued",
        "last_access",
        "lock_count",
        "pages",
        "parent",
        "priority",
        "salt",
        "state",
        "tag",
        "token_ids",
    )

    def __init__(
        self,
        *,
        parent: "RadixNode | None",
        token_ids: list[int],
        pages: list[int],
        end: int,
        salt: str,
        tag: ProgramTag,
        state: KvState,
    ) -> None:
        self.parent = parent
        """None in a root, and in a node that has left the tree."""
        self.token_ids = token_ids
        self.pages = pages
        self.end = end
        """Tokens from the root to the end of this node."""
        self.salt = salt
        self.tag = tag
        """Of the request that inserted it."""
        self.state = state
        self.children: dict[PageKey, RadixNode] = {}
        self.lock_count = 0
        """Locks on this node and below it."""
        self.last_access = 0
        """The tree's logical time: it grows by one with each use of the tree."""
        self.hit_count = 0
        """How many matches went through here."""
        self.priority = 0.0
        """The eviction policy's answer at the last access; the lowest goes first."""
        self.is_queued = False
        """The eviction queue has an entry for it."""

    def __repr__(self) -> str:
        return (
            f"RadixNode(end={self.end}, tokens={len(self.token_ids)}, children={len(self.children)}, "
            f"locks={self.lock_count})"
        )
