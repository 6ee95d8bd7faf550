"""The trie of several continuations of one prompt: what of it a model has to compute to score them all.

A node is a beginning of a continuation; the root is the prompt alone. To know the log probability of a token
the model needs all before it, so nodes at which every continuation ends are not computed. The others are cut
into paths: the first runs from the root down, each further one from where it leaves those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScorePath:
    """Some nodes of the trie in a row, and what goes on from each."""

    token_ids: tuple[int, ...]
    """From the root to the last of the nodes."""
    first: int
    """Depth of the first of them, tokens; the nodes before it belong to other paths."""
    targets: tuple[tuple[int, ...], ...]
    """The tokens that go on from each of the nodes."""


class ScoreTrie:
    """Of ``continuations``: at least one, each of at least one token. They may be equal, or begin another."""

    def __init__(self, continuations: Sequence[Sequence[int]]) -> None:
        self._continuations = continuations
        self._children: list[dict[int, int]] = [{}]
        """By node: the token that goes on, and the node that it leads to."""
        for token_ids in continuations:
            node = 0
            for token_id in token_ids:
                following = self._children[node].setdefault(token_id, len(self._children))
                if following == len(self._children):
                    self._children.append({})
                node = following
        self._nodes: list[list[int]] = []
        """Of each path."""
        self.paths = self._cut()

    @property
    def num_computed_nodes(self) -> int:
        """Without the root."""
        return sum(map(len, self._nodes)) - 1

    def scores(self, logprobs: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
        """Of each continuation its tokens' log probabilities, from those of each path's targets."""
        known: dict[int, dict[int, float]] = {}
        for nodes, by_node in zip(self._nodes, logprobs, strict=True):
            for node, values in zip(nodes, by_node, strict=True):
                known[node] = dict(zip(self._children[node], values, strict=True))
        return [self._along(token_ids, known) for token_ids in self._continuations]

    def _along(self, token_ids: Sequence[int], known: dict[int, dict[int, float]]) -> list[float]:
        node, found = 0, []
        for token_id in token_ids:
            found.append(known[node][token_id])
            node = self._children[node][token_id]
        return found

    def _cut(self) -> list[ScorePath]:
        """Depth first, so that what a path goes on from was computed shortly before."""
        paths: list[ScorePath] = []
        pending: list[tuple[int, list[int]]] = [(0, [])]
        while pending:
            node, token_ids = pending.pop()
            first, nodes = len(token_ids), [node]
            branches: list[tuple[int, list[int]]] = []
            while inner := [item for item in self._children[nodes[-1]].items() if self._children[item[1]]]:
                branches += [(child, [*token_ids, token_id]) for token_id, child in inner[1:]]
                token_id, child = inner[0]
                token_ids.append(token_id)
                nodes.append(child)
            pending += branches
            targets = tuple(tuple(self._children[each]) for each in nodes)
            paths.append(ScorePath(tuple(token_ids), first, targets))
            self._nodes.append(nodes)
        return paths
