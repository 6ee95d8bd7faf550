"""The shape of the radix tree, for people: numbers only, as far as a picture can show it."""

import heapq
from collections.abc import Iterable
from itertools import count, islice

import msgspec

from ramet.runtime.cache.node import RadixNode

MAX_NODES = 400
MAX_CHILDREN = 256
"""Of one node that are looked at, the newest first: a root may have any number of them, and a step waits."""


class NodeOutline(msgspec.Struct, frozen=True, array_like=True):
    """One node."""

    parent: int
    """Index of its parent among the nodes; -1: it is a root."""
    num_tokens: int
    hit_count: int
    """How many prompts went through here."""
    lock_count: int
    """How many running requests hold it."""
    age: int
    """How often the tree was used since this node was."""
    num_children: int
    """Shown or not."""


class CacheOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the tree that was used last, parents before children; and how large the whole is."""

    nodes: list[NodeOutline] = []
    num_nodes: int = 0
    """Of the whole tree, whoever's they are."""
    num_tokens: int = 0
    num_locked_tokens: int = 0
    capacity: int = 0
    """Tokens that the KV pool has room for."""


def outline_nodes(roots: Iterable[RadixNode], clock: int, max_nodes: int = MAX_NODES) -> list[NodeOutline]:
    """The ``max_nodes`` nodes that were used last, of the trees below ``roots``; ``clock`` is their time.

    What is shown of a tree is connected: a node comes after the ones above it. Costs ``max_nodes`` times
    MAX_CHILDREN at most, whatever the size of the tree.
    """
    ties = count()
    # Nodes with nothing below, and no tokens, are roots of trees that are empty.
    heap = [(-_last_use(root), next(ties), -1, root) for root in roots if root.children]
    heapq.heapify(heap)
    nodes: list[NodeOutline] = []
    while heap and len(nodes) < max_nodes:
        used, _, parent, node = heapq.heappop(heap)
        nodes.append(
            NodeOutline(
                parent=parent,
                num_tokens=len(node.token_ids),
                hit_count=node.hit_count,
                lock_count=node.lock_count,
                age=clock + used,
                num_children=len(node.children),
            )
        )
        for child in islice(reversed(node.children.values()), MAX_CHILDREN):
            heapq.heappush(heap, (-child.last_access, next(ties), len(nodes) - 1, child))
    return nodes


def _last_use(root: RadixNode) -> int:
    """A node that is new below a root is no use of the root."""
    return max(root.last_access, next(reversed(root.children.values())).last_access)
