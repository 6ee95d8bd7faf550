"""Pass: while the program waits, or runs a tool, what its next calls begin with is computed already.

Where a branch has said something after its last call and the program then waits, the backend is asked to
compute the branch's prompt as it stands, in the background.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.lang.compiler.piece import Piece, Track, fixed_end, in_depth_first_order, marked_text
from ramet.lang.operations import AppendValue, Choose, Concatenate, Generate, Prewarm, Spawn

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch

MIN_TEXT = 256
"""Characters. Less than this is computed in the step of the call itself at no noticeable cost."""


class PrewarmTails:
    """The pass for one run. ``_tails``: how much fixed text each branch has said that no call has used."""

    def __init__(self) -> None:
        self._tails: dict[Branch, int] = {}

    def __call__(self, piece: Piece) -> Piece:
        if piece.whole:
            return piece
        for track in piece.tracks:
            self._add(track)
        if not piece.waits:
            return piece
        warm = [branch for branch, length in self._tails.items() if length >= MIN_TEXT]
        for branch in warm:
            del self._tails[branch]
        tracks = piece.by_branch()
        tracks |= {branch: _prewarmed(tracks.get(branch, Track(branch, ()))) for branch in warm}
        return replace(piece, tracks=in_depth_first_order(list(tracks.values())))

    def _add(self, track: Track) -> None:
        before = self._tails.get(track.branch, 0)
        if any(
            isinstance(one, Generate | Choose | Spawn | Concatenate | AppendValue) for one in track.operations
        ):
            before = 0
        length = before + len(marked_text(fixed_end(track.operations)))
        if length:
            self._tails[track.branch] = length
        else:
            self._tails.pop(track.branch, None)


def _prewarmed(track: Track) -> Track:
    return replace(track, operations=(*track.operations, Prewarm()))
