"""Pass: branches begin depth first, so that a prefix that some of them share is used while it is in the cache.

A fork begins its branches in the order of a walk through the tree of their texts; those that share no more than
their parent's prompt stay in their own order. Which branch is which does not change.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.lang.compiler.piece import Piece, Track, fixed_start, marked_text
from ramet.lang.operations import Operation, Spawn

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch

BLOCK = 64
"""Characters. A shorter common beginning saves less than one step of a model computes anyway."""


def order_branches(piece: Piece) -> Piece:
    tracks = piece.by_branch()

    def ordered(operation: Operation) -> Operation:
        match operation:
            case Spawn(children) if len(children) > 2:
                return replace(operation, children=_ordered(children, tracks))
            case _:
                return operation

    return replace(
        piece,
        tracks=tuple(
            replace(track, operations=tuple(ordered(operation) for operation in track.operations))
            if any(isinstance(operation, Spawn) for operation in track.operations)
            else track
            for track in piece.tracks
        ),
    )


def depth_first(texts: Sequence[str]) -> list[int]:
    """Positions of the texts in the order of a walk through their trie of blocks, first seen first."""
    nodes: dict[tuple[int, str], int] = {}
    num_nodes = 0
    keys: list[tuple[int, ...]] = []
    for text in texts:
        key: list[int] = []
        parent = -1
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            edge = parent, text[start : start + BLOCK]
            if edge not in nodes:
                nodes[edge] = num_nodes
                num_nodes += 1
            parent = nodes[edge]
            key.append(parent)
        keys.append((*key, num_nodes))
        num_nodes += 1
    return sorted(range(len(texts)), key=lambda index: keys[index])


def num_moved(piece: Piece) -> int:
    """How many branches do not begin in the order in which they were forked."""
    tracks = piece.by_branch()
    return sum(
        one is not other
        for track in piece.tracks
        for operation in track.operations
        if isinstance(operation, Spawn)
        for one, other in zip(operation.children, _ordered(operation.children, tracks), strict=True)
    )


def _ordered(children: "tuple[Branch, ...]", tracks: "dict[Branch, Track]") -> "tuple[Branch, ...]":
    texts = [
        marked_text(fixed_start(tracks[child].operations)) if child in tracks else "" for child in children
    ]
    return tuple(children[index] for index in depth_first(texts))
