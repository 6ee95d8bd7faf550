"""Which unlocked leaf of the radix tree goes first: the policies, and the queue that keeps their order."""

import heapq
from typing import Protocol

from ramet.runtime.cache.node import RadixNode


class EvictionPolicy(Protocol):
    """Ranks nodes. One object serves one tree: it may keep state of its own."""

    def priority(self, node: RadixNode) -> float:
        """Asked at each access of ``node`` and kept until the next; the lowest is evicted first, ties by age.

        ``last_access``, ``hit_count``, ``tag``, ``end`` and ``token_ids`` are there to read. A node's
        priority must not fall from one access to the next.
        """
        ...

    def evicted(self, priority: float) -> None:
        """Pages of a node of this priority were just evicted."""
        ...


class LruEviction:
    """The least recently used leaf first."""

    def priority(self, node: RadixNode) -> float:
        return float(node.last_access)

    def evicted(self, priority: float) -> None:
        """Nothing to learn."""


PROGRAM_USES = 512
"""Uses of the tree by which what is known of a program moves its nodes: some dozens of requests. More would
let programs that never come back hold the cache."""


class ProgramLruEviction:
    """As LruEviction; but what a running program is to use again counts as used PROGRAM_USES later than it was,
    and what only its last call has used as used that much earlier.

    Where requests carry no ``remaining_calls``, it is LRU.
    """

    def priority(self, node: RadixNode) -> float:
        remaining = node.tag.remaining_calls
        if remaining is None:
            return float(node.last_access)
        if remaining > 0:
            return float(node.last_access + PROGRAM_USES)
        return float(node.last_access - (PROGRAM_USES if node.hit_count == 0 else 0))

    def evicted(self, priority: float) -> None:
        """Nothing to learn."""


class LfuEviction:
    """The least frequently used leaf first, with ageing, so that what was popular once does not stay for ever.

    Priority = hits + the priority of the latest eviction: LFU with dynamic ageing (Arlitt et al., "Evaluating
    content management techniques for Web proxy caches", 2000).
    """

    def __init__(self) -> None:
        self._age = 0.0

    def priority(self, node: RadixNode) -> float:
        return self._age + node.hit_count

    def evicted(self, priority: float) -> None:
        self._age = max(self._age, priority)


class EvictionQueue:
    """Unlocked leaves by (priority, last access), as a heap whose entries are checked when they come up.

    An entry is stale where its node left the tree, was locked, got a child, or was used since: then it is
    dropped, or queued again at its new place. A use of a node so costs nothing here, and an eviction
    O(log n) for each use since the last one at most. A node has at most one entry.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, RadixNode]] = []
        self._num_pushes = 0
        self._num_gone = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap)

    def push(self, node: RadixNode) -> None:
        """Queue a node that is, or may be, an unlocked leaf; nothing happens where it is queued already."""
        if not node.is_queued:
            node.is_queued = True
            # The counter keeps the heap from ever comparing two nodes.
            self._num_pushes += 1
            heapq.heappush(self._heap, (node.priority, node.last_access, self._num_pushes, node))

    def drop(self, node: RadixNode) -> None:
        """``node`` left the tree otherwise than by ``pop``. O(1) on average.

        Its entry comes up with the next evictions, and where there are none the entries of nodes that left are
        swept once they are more than the others.
        """
        if node.is_queued:
            self._num_gone += 1
            if self._num_gone > len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if entry[3].parent is not None]
                heapq.heapify(self._heap)
                self._num_gone = 0

    def pop(self) -> RadixNode | None:
        """The unlocked leaf to evict next; None where there is none."""
        while self._heap:
            priority, last_access, _, node = heapq.heappop(self._heap)
            node.is_queued = False
            if node.parent is None:
                self._num_gone -= 1
                continue
            if node.lock_count > 0 or node.children:
                continue
            if priority != node.priority or last_access != node.last_access:
                self.push(node)
                continue
            return node
        return None
