"""Pass: calls whose answers nobody reads are not made, where the program has declared what it is run for.

Without such a declaration nothing is left out: whoever holds the run may read any variable and the whole text,
and an error of any call is raised. With one, a call is needed if a declared variable is made of its answer, or
has it in its prompt; or if it may call tools, which may do anything.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.lang.compiler.piece import Piece, Track
from ramet.lang.operations import (
    AppendValue,
    Choose,
    CloseScope,
    Concatenate,
    Drop,
    Generate,
    Operation,
    Spawn,
)
from ramet.lang.variables import Variable

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch


def drop_unread(piece: Piece) -> Piece:
    """Operations behind the last one that is needed become one Drop, where calls are among them."""
    if piece.wanted is None or not piece.whole:
        return piece
    ends = _needed_ends(piece, _with_parts(piece.wanted))
    return replace(piece, tracks=tuple(_cut(track, ends.get(track.branch, 0)) for track in piece.tracks))


def dropped_calls(piece: Piece) -> list[Generate | Choose]:
    """Of a piece that went through the pass."""
    return [
        dropped
        for track in piece.tracks
        for operation in track.operations
        if isinstance(operation, Drop)
        for dropped in operation.operations
        if isinstance(dropped, Generate | Choose)
    ]


def _needed_ends(piece: Piece, wanted: set[int]) -> "dict[Branch, int]":
    """How many operations of each track are needed."""
    tracks = piece.by_branch()
    makers: dict[int, tuple[Branch, int]] = {}
    parents: dict[Branch, tuple[Branch, int]] = {}
    pending: list[tuple[Branch, int]] = []
    for track in piece.tracks:
        for end, operation in enumerate(track.operations, start=1):
            if isinstance(operation, Spawn):
                parents |= dict.fromkeys(operation.children, (track.branch, end))
            makers |= dict.fromkeys(map(id, _made_by(operation)), (track.branch, end))
            if isinstance(operation, Generate) and operation.tools is not None:
                pending.append((track.branch, end))
    pending += [makers[variable] for variable in wanted if variable in makers]
    ends: dict[Branch, int] = {}
    while pending:
        branch, end = pending.pop()
        had = ends.get(branch, 0)
        if end <= had or branch not in tracks:
            continue
        ends[branch] = end
        if branch in parents:
            pending.append(parents[branch])
        for operation in tracks[branch].operations[had:end]:
            match operation:
                case Concatenate(children):
                    pending += [(child, len(tracks[child].operations)) for child in children if child in tracks]
                case AppendValue(variable):
                    pending += [makers[one] for one in _with_parts((variable,)) if one in makers]
    return ends


def _made_by(operation: Operation) -> list[Variable]:
    match operation:
        case Generate(variable=variable, reasoning=reasoning):
            return [variable] if reasoning is None else [variable, reasoning[1]]
        case Choose(variable=variable) | CloseScope(variable=variable):
            return [variable]
        case _:
            return []


def _cut(track: Track, end: int) -> Track:
    rest = track.operations[end:]
    if not any(isinstance(operation, Generate | Choose | Spawn) for operation in rest):
        return track
    return replace(track, operations=(*track.operations[:end], Drop(rest)))


def _with_parts(variables: tuple[Variable, ...]) -> set[int]:
    """The identities of the variables and of those that they are lists of."""
    found: dict[int, Variable] = {}
    pending = list(variables)
    while pending:
        variable = pending.pop()
        if id(variable) not in found:
            found[id(variable)] = variable
            pending += [part for part in variable.parts or () if part is not None]
    return set(found)
