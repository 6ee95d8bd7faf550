"""What the types need of the algebra to work on their parts."""

from typing import Protocol

from ramet.runtime.grammar.schema.shapes import Node


class Combine(Protocol):
    def intersect(self, left: Node, right: Node) -> Node: ...

    def negate(self, node: Node) -> Node: ...

    def accepts(self, node: Node, value: object) -> bool: ...

    def check_pace(self) -> None:
        """Raises OverdueError where it all takes too long. To be called between steps that can be long."""
        ...
