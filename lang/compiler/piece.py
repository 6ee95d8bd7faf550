"""The compiler's intermediate form: what each branch was told to do, as frozen operations.

``Spawn`` and ``Concatenate`` are the edges between branches; on a branch each operation follows the one before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.lang.backends.base import ToolSpec
from ramet.lang.operations import (
    AppendImage,
    AppendText,
    AppendValue,
    BeginRole,
    Choose,
    Concatenate,
    EndRole,
    Generate,
    Operation,
    Spawn,
)
from ramet.lang.variables import Variable

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch

Call = Generate | Choose
Fixed = AppendText | AppendImage | BeginRole | EndRole
"""What is known of a prompt before anything was generated."""


@dataclass(frozen=True, slots=True)
class Track:
    """One branch's part of a piece."""

    branch: "Branch"
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What was said between two points. ``tracks``: depth first, parents before their children."""

    tracks: tuple[Track, ...]
    waits: bool = False
    """The program waits now for something that it said."""
    whole: bool = False
    """The program's body has ended: nothing follows."""
    wanted: tuple[Variable, ...] | None = None
    """The only variables that will be read from here on, where that is known."""

    def by_branch(self) -> "dict[Branch, Track]":
        return {track.branch: track for track in self.tracks}


Pass = Callable[[Piece], Piece]
"""Gives back the piece with some of its operations changed; what the program makes stays as it is."""


def in_depth_first_order(tracks: Sequence[Track]) -> tuple[Track, ...]:
    return tuple(sorted(tracks, key=lambda track: branch_numbers(track.branch.path)))


def branch_numbers(path: str) -> tuple[int, ...]:
    """ "0/3/1" -> (0, 3, 1), which sorts depth first."""
    return tuple(int(number) for number in path.split("/"))


def fixed_start(operations: Sequence[Operation]) -> tuple[Fixed, ...]:
    """What they say before the first call, fork or join."""
    found: list[Fixed] = []
    for operation in operations:
        match operation:
            case AppendText() | AppendImage() | BeginRole() | EndRole():
                found.append(operation)
            case Generate() | Choose() | Spawn() | Concatenate() | AppendValue():
                break
    return tuple(found)


def fixed_end(operations: Sequence[Operation]) -> tuple[Fixed, ...]:
    """What they say after the last call, fork or join."""
    return fixed_start(operations[::-1])[::-1]


def first_tools(piece: Piece, root: "Branch") -> tuple[ToolSpec, ...]:
    """What the first calls that go on from the branch's start offer, where that is the same for all."""
    tracks = piece.by_branch()
    offered: list[tuple[ToolSpec, ...]] = []
    pending = [root]
    while pending:
        track = tracks.get(pending.pop())
        for operation in () if track is None else track.operations:
            if isinstance(operation, Spawn):
                pending += operation.children
            elif isinstance(operation, Generate | Choose):
                offered.append(offered_tools(operation))
                break
    return offered[0] if offered and all(one == offered[0] for one in offered) else ()


def offered_tools(call: Call) -> tuple[ToolSpec, ...]:
    tools = call.tools if isinstance(call, Generate) else None
    return () if tools is None else tuple(tool.spec() for tool in tools.tools)


def marked_text(fixed: Sequence[Fixed]) -> str:
    """One text in which roles and images are marked: for comparing and measuring, not for showing."""
    return "".join(_marked(part) for part in fixed)


def _marked(part: Fixed) -> str:
    match part:
        case AppendText(text):
            return text
        case AppendImage(url):
            return f"\x00image {url}\x00"
        case BeginRole(role):
            return f"\x00{role}\x00"
        case EndRole(role):
            return f"\x00/{role}\x00"


def calls_of(track: Track) -> Iterator[Call]:
    for operation in track.operations:
        if isinstance(operation, Generate | Choose):
            yield operation
