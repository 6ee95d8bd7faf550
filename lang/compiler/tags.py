"""Pass: each call's ProgramTag says how many calls go on from it, for the scheduler and the cache."""

from dataclasses import replace

import msgspec

from ramet.lang.compiler.piece import Piece, Track
from ramet.lang.operations import Choose, Generate, Operation, Spawn
from ramet.runtime.protocol import ProgramTag


def tag_calls(piece: Piece) -> Piece:
    tracks = piece.by_branch()
    totals: dict[str, int] = {}
    tagged: list[Track] = []
    # Children before their parents: a parent's calls are followed by those of the branches that it forks.
    for track in reversed(piece.tracks):
        following = 0
        operations: list[Operation] = []
        for operation in reversed(track.operations):
            match operation:
                case Generate() | Choose():
                    operation = _with_tag(operation, _known(following, piece))
                    following += 1
                case Spawn(children):
                    following += sum(totals[child.path] for child in children if child in tracks)
                case _:
                    pass  # No call.
            operations.append(operation)
        totals[track.branch.path] = following
        tagged.append(replace(track, operations=tuple(reversed(operations))))
    return replace(piece, tracks=tuple(reversed(tagged)))


def tag_of(operation: Generate | Choose) -> ProgramTag:
    return operation.tag if isinstance(operation, Generate) else operation.request.tag


def _known(following: int, piece: Piece) -> int | None:
    """A program that goes on may still make calls that nobody knows of."""
    return following if following or piece.whole else None


def _with_tag(operation: Generate | Choose, following: int | None) -> Operation:
    tag = msgspec.structs.replace(tag_of(operation), remaining_calls=following)
    if isinstance(operation, Generate):
        return replace(operation, tag=tag)
    return replace(operation, request=msgspec.structs.replace(operation.request, tag=tag))
