"""Prompts that begin alike, as a radix tree: what they share is in it once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.lang.compiler.graph import Answer, Argument

Mark = Answer | Argument
"""What stands for text that is not known."""


@dataclass(slots=True, eq=False)
class Node:
    """The end of what some prompts begin with. It stays one while others are added, which may cut its edge."""

    parent: "Node | None"
    edge: str | Mark
    """What comes behind the parent."""
    is_end: bool = False
    """A prompt ends here."""
    children: "dict[str | Mark, Node]" = field(default_factory=dict, repr=False)
    """By the first character of their text, or by their mark."""

    def pieces(self) -> list[str | Mark]:
        """All from the root to here; texts that follow one another are one."""
        edges: list[str | Mark] = []
        node = self
        while node.parent is not None:
            edges.append(node.edge)
            node = node.parent
        return joined(edges[::-1])


class PromptTrie:
    """Invariant: no two edges of a node begin with the same character or mark; no edge is an empty text."""

    def __init__(self) -> None:
        self.root: Node = Node(None, "")

    def extend(self, node: Node, piece: str | Mark) -> tuple[Node, str | Mark | None]:
        """Goes on from ``node`` by ``piece``, which is added as far as it is not there.

        Returns:
            Where it ends, and what of it is new; None: nothing is.
        """
        if not isinstance(piece, str):
            child = node.children.get(piece)
            if child is not None:
                return child, None
            node.children[piece] = child = Node(node, piece)
            return child, piece
        rest = piece
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = child = Node(node, rest)
                return child, rest
            assert isinstance(child.edge, str)
            length = _common_length(child.edge, rest)
            if length < len(child.edge):
                child = _cut(child, length)
            node, rest = child, rest[length:]
        return node, None

    def common_start(self) -> list[str | Mark]:
        """What all prompts begin with."""
        node = self.root
        while len(node.children) == 1 and not node.is_end:
            (node,) = node.children.values()
        return node.pieces()


def joined(pieces: Sequence[str | Mark]) -> list[str | Mark]:
    """The same with texts that follow one another as one, and none that is empty."""
    found: list[str | Mark] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        found += _text(texts)
        texts = []
        found.append(piece)
    return found + _text(texts)


def _text(texts: list[str]) -> list[str | Mark]:
    """All in one; none where it is empty."""
    return [text] if (text := "".join(texts)) else []


def _cut(child: Node, length: int) -> Node:
    """Puts a node into the child's edge, behind so many characters of it."""
    parent, edge = child.parent, child.edge
    assert parent is not None
    assert isinstance(edge, str)
    middle: Node = Node(parent, edge[:length])
    parent.children[edge[0]] = middle
    middle.children[edge[length]] = child
    child.parent, child.edge = middle, edge[length:]
    return middle


def _common_length(left: str, right: str) -> int:
    """By halving: slices are compared far faster than characters."""
    if right.startswith(left):
        return len(left)
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
