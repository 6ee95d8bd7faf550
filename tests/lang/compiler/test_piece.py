"""Pieces: what is fixed at their ends, and their order."""

from ramet.lang import ProgramState, assistant, function, gen, system
from ramet.lang.compiler.piece import (
    branch_numbers,
    calls_of,
    fixed_end,
    fixed_start,
    in_depth_first_order,
    marked_text,
)
from ramet.lang.operations import AppendText, BeginRole, EndRole


@function
def program(s: ProgramState) -> None:
    s += system("Be brief.") + "in "
    with s.var_scope("scope"):
        s += "front"
    s += assistant(gen("a")) + "behind"
    branches = s.fork(11)
    branches += lambda i: f"branch {i}" + gen("b")


def test_what_is_said_before_the_first_call_and_after_the_last() -> None:
    piece = program.trace().piece
    root, first = piece.tracks[0], piece.tracks[1]
    start = fixed_start(root.operations)
    assert start[:3] == (BeginRole("system"), AppendText("Be brief."), EndRole("system"))
    assert marked_text(start) == "\x00system\x00Be brief.\x00/system\x00in front\x00assistant\x00"
    assert fixed_end(root.operations) == ()
    assert marked_text(fixed_end(root.operations[:-1])) == "\x00/assistant\x00behind"
    assert marked_text(fixed_start(first.operations)) == "branch 0"
    assert [call.variable.name for call in calls_of(root)] == ["a"]


def test_tracks_are_in_depth_first_order_by_number() -> None:
    tracks = program.trace().piece.tracks
    assert [track.branch.path for track in tracks] == ["0", *(f"0/{i}" for i in range(11))]
    assert in_depth_first_order(tracks[::-1]) == tracks
    assert branch_numbers("0/10/2") == (0, 10, 2)
    assert set(program.trace().piece.by_branch()) != set()
