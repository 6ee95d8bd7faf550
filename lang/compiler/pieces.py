"""Pieces: collects what the branches of a run are told, and hands it on through the passes, piece by piece."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ramet.lang.compiler.order import order_branches
from ramet.lang.compiler.piece import Pass, Piece, Track, in_depth_first_order
from ramet.lang.compiler.prewarm import PrewarmTails
from ramet.lang.compiler.tags import tag_calls
from ramet.lang.compiler.unread import drop_unread
from ramet.lang.loop_thread import Calls
from ramet.lang.variables import Variable

if TYPE_CHECKING:
    from ramet.lang.interpreter import Branch

PIECE_TIME = 0.002
"""Seconds that a piece stays open while the program neither waits nor ends: long enough for a program to say
what it has to say, and short beside any call."""
PATIENT_TIME = 1.0
"""The same where a program is to be compiled as a whole: it may wait for what it does not tell us of."""


class Pace(Enum):
    """When a piece ends, besides where the program waits or ends."""

    AT_ONCE = "at once"
    """With each operation: nothing is compiled."""
    SOON = "soon"
    """After PIECE_TIME."""
    PATIENT = "patient"
    """After PATIENT_TIME."""
    NEVER = "never"
    """What is said is only written down."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the compiler does with the runs of a program."""

    pace: Pace = Pace.SOON
    outputs: tuple[str, ...] | None = None
    """The variables that are read after the run; None: any may be, and the text."""

    @property
    def compiles(self) -> bool:
        return self.pace is not Pace.AT_ONCE

    @property
    def defers(self) -> bool:
        """Whether the body is rewritten so that it does not wait for what it only says."""
        return self.pace is Pace.PATIENT

    def passes(self) -> tuple[Pass, ...]:
        """The passes over each piece of one run, in order."""
        return (drop_unread, order_branches, tag_calls, PrewarmTails()) if self.compiles else ()


COMPILED = Compilation()
"""How programs run."""
INTERPRETED = Compilation(Pace.AT_ONCE)
"""Each call is made as it is said."""


class Pieces:
    """Thread-safe. Branches keep what they are told until they are asked for it here."""

    def __init__(self, thread: Calls, pace: Pace, passes: Sequence[Pass]) -> None:
        self._thread = thread
        self._pace = pace
        self._passes = tuple(passes)
        self._lock = threading.Lock()
        self._release_lock = threading.RLock()
        """Held while a piece is handed on, so that the next one cannot overtake it."""
        self._touched: dict[Branch, None] = {}
        self._number = 0
        self.log: list[Branch] = []
        """With Pace.NEVER: each branch as often as it was told something, in that order."""

    def touch(self, branch: "Branch") -> None:
        """The branch was told something."""
        with self._lock:
            opens = not self._touched
            self._touched[branch] = None
            pace, number = self._pace, self._number
            if pace is Pace.NEVER:
                self.log.append(branch)
        if pace is Pace.AT_ONCE:
            self.release()
        elif opens and pace is not Pace.NEVER:
            self._thread.call(self._start_clock, number, PIECE_TIME if pace is Pace.SOON else PATIENT_TIME)

    def release(
        self, *, waits: bool = False, whole: bool = False, wanted: tuple[Variable, ...] | None = None
    ) -> None:
        """Ends the piece: it goes through the passes, and its branches carry it out. See Piece for the fields.
        After the whole nothing is held back any more."""
        with self._release_lock:
            with self._lock:
                if self._pace is Pace.NEVER:
                    return
                if whole:
                    self._pace = Pace.AT_ONCE
                touched, self._touched = list(self._touched), {}
                self._number += 1
            if touched or waits:
                tracks = in_depth_first_order([Track(branch, branch.take_held()) for branch in touched])
                self._hand_on(Piece(tracks, waits, whole, wanted))

    def written_down(self) -> Piece:
        """With Pace.NEVER: all that was said."""
        with self._lock:
            touched = list(self._touched)
        return Piece(
            in_depth_first_order([Track(branch, branch.take_held()) for branch in touched]), whole=True
        )

    def _hand_on(self, piece: Piece) -> None:
        for compile_piece in self._passes:
            piece = compile_piece(piece)
        # Children first: a parent may begin them as soon as it has its own part.
        for track in reversed(piece.tracks):
            track.branch.enqueue(track.operations)
        for track in piece.tracks:
            track.branch.wake()

    def _start_clock(self, number: int, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._time_is_up, number)

    def _time_is_up(self, number: int) -> None:
        with self._lock:
            is_open = number == self._number
        if is_open:
            self.release()
