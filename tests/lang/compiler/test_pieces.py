"""When what a program says is handed on, and that its order is kept."""

import threading
import time

import pytest

from ramet.lang import ProgramState, function, gen
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.lang.compiler.piece import Piece
from ramet.lang.compiler.pieces import COMPILED, INTERPRETED, Compilation, Pace
from ramet.lang.interpreter import Execution
from ramet.lang.loop_thread import branches_loop
from ramet.lang.operations import AppendText, Report
from ramet.lang.signals import finish
from ramet.lang.variables import Variable


def execution(pace: Pace, seen: list[Piece] | None = None) -> Execution:
    made = Execution("program", "program-1", ScriptedBackend(), branches_loop(), Compilation(pace))
    if seen is not None:
        made.pieces._passes = (lambda piece: seen.append(piece) or piece,)  # type: ignore[func-returns-value]
    return made


def text_of(made: Execution) -> str:
    report = Report(Variable(None, made.root.place, streams=False), "text")
    made.root.submit(report)
    made.pieces.release()
    finish(report.variable.settling())
    return str(report.variable.value())


@pytest.mark.parametrize("pace", [Pace.AT_ONCE, Pace.SOON, Pace.PATIENT])
def test_what_is_said_is_carried_out_in_its_order(pace: Pace) -> None:
    made = execution(pace)
    for number in range(300):
        made.root.submit(AppendText(f"{number} "))
        if number % 7 == 0:
            made.pieces.release()
        if number % 100 == 0:
            time.sleep(0.005)
    assert text_of(made) == "".join(f"{number} " for number in range(300))


def test_a_piece_ends_by_itself_where_the_program_does_something_else() -> None:
    seen: list[Piece] = []
    made = execution(Pace.SOON, seen)
    report = Report(Variable(None, made.root.place, streams=False), "text")
    made.root.submit(AppendText("said"))
    made.root.submit(report)
    finish(report.variable.settling())
    assert report.variable.value() == "said"
    assert all(not piece.waits and not piece.whole for piece in seen)


def test_a_patient_piece_ends_only_where_the_program_waits() -> None:
    seen: list[Piece] = []
    made = execution(Pace.PATIENT, seen)
    made.root.submit(AppendText("said"))
    time.sleep(0.02)
    assert seen == []
    made.pieces.release(waits=True)
    assert [(len(piece.tracks), piece.waits, piece.whole) for piece in seen] == [(1, True, False)]
    made.pieces.release(waits=True)
    assert [piece.tracks for piece in seen[1:]] == [()]


def test_after_the_whole_nothing_is_held_back() -> None:
    seen: list[Piece] = []
    made = execution(Pace.PATIENT, seen)
    made.root.submit(AppendText("a"))
    made.pieces.release(whole=True)
    report = Report(Variable(None, made.root.place, streams=False), "text")
    made.root.submit(AppendText("b"))
    made.root.submit(report)
    finish(report.variable.settling())
    assert report.variable.value() == "ab"


def test_what_is_only_written_down_reaches_no_backend() -> None:
    made = execution(Pace.NEVER)
    for text in ("a", "b"):
        made.root.submit(AppendText(text))
    made.pieces.release(whole=True)
    assert made.pieces.log == [made.root, made.root]
    piece = made.pieces.written_down()
    assert piece.tracks[0].operations == (AppendText("a"), AppendText("b"))
    assert piece.whole


def test_pieces_from_several_threads_do_not_overtake_each_other() -> None:
    made = execution(Pace.SOON)
    lock = threading.Lock()
    said: list[str] = []

    def speak(name: str) -> None:
        for number in range(200):
            with lock:
                said.append(f"{name}{number} ")
                made.root.submit(AppendText(said[-1]))
            made.pieces.release()

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert text_of(made) == "".join(said)


def test_a_program_that_never_reads_runs_to_its_end() -> None:
    backend = ScriptedBackend(Reply("x", delay=0.001))

    @function
    def program(s: ProgramState) -> None:
        backend.calls.clear()
        s += gen("a")
        deadline = time.monotonic() + 60
        while not backend.calls:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        s += gen("b")

    for variant in (program, program.compile(), program.interpreted()):
        assert variant.run(backend=backend).text() == "xx"


def test_a_piece_that_is_open_when_the_body_fails_is_not_carried_out() -> None:
    backend = ScriptedBackend(Reply("x", delay=60))

    @function
    def program(s: ProgramState) -> None:
        s += gen("a")
        branches = s.fork(2)
        branches += gen("b")
        raise ValueError("no")

    for variant in (program, program.compile(), program.compile(outputs=["a"]), program.interpreted()):
        with pytest.raises(ValueError, match="no"):
            variant.run(backend=backend)
        assert backend.num_running == 0


def test_only_what_is_compiled_goes_through_passes() -> None:
    assert INTERPRETED.passes() == ()
    assert len(COMPILED.passes()) == 4
