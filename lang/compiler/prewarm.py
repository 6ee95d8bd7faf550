"""Pass: while the program waits, or runs a tool, what its next calls begin with is computed already.

Where a branch has said something after its last call and the program then waits, the backend is asked to
compute the branch's prompt as it stands, in the background.
"""

from dataclasses import replace

from ramet.lang.compiler.piece import Piece, Track, fixed_end, marked_text
from ramet.lang.operations import Prewarm

MIN_TEXT = 256
"""Characters. Less than this is computed in the step of the call itself at no noticeable cost."""


def prewarm_tails(piece: Piece) -> Piece:
    if not piece.waits or piece.whole:
        return piece
    return replace(piece, tracks=tuple(_prewarmed(track) if warms(track) else track for track in piece.tracks))


def warms(track: Track) -> bool:
    """Whether the branch ends with enough fixed text that no call of it has used."""
    return len(marked_text(fixed_end(track.operations))) >= MIN_TEXT


def _prewarmed(track: Track) -> Track:
    return replace(track, operations=(*track.operations, Prewarm()))
