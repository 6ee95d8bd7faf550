"""Depth-first order of branches."""

from hypothesis import given
from hypothesis import strategies as st

from ramet.lang import ProgramState, function, gen
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.compiler.order import BLOCK, depth_first, num_moved, order_branches

blocks = st.lists(st.sampled_from(["a" * BLOCK, "b" * BLOCK, "c" * BLOCK]), max_size=4).map("".join)
texts = st.lists(st.tuples(blocks, st.sampled_from(["", "x", "yy"])).map("".join), max_size=12)


@given(texts)
def test_texts_that_begin_alike_stand_together(texts: list[str]) -> None:
    order = depth_first(texts)
    assert sorted(order) == list(range(len(texts)))
    for length in range(BLOCK, 5 * BLOCK, BLOCK):
        beginnings = [texts[index][:length] for index in order if len(texts[index]) >= length]
        runs = [one for at, one in enumerate(beginnings) if not at or beginnings[at - 1] != one]
        assert len(runs) == len(set(runs))


@given(st.lists(st.text("ab", max_size=BLOCK - 1), max_size=20))
def test_texts_that_share_less_than_a_block_stay_in_their_order(texts: list[str]) -> None:
    assert depth_first(texts) == list(range(len(texts)))


def test_a_fork_begins_its_branches_beside_those_that_share_their_text() -> None:
    even, odd = "even " * 20, "odd " * 20

    @function
    def program(s: ProgramState) -> None:
        s += "root"
        branches = s.fork(6)
        branches += lambda i: (odd if i % 2 else even) + f"{i}" + gen("a", temperature=0)
        branches.join()

    piece = program.trace().piece
    assert num_moved(piece) == 4
    spawn = order_branches(piece).tracks[0].operations[1]
    assert [child.path for child in spawn.children] == [f"0/{i}" for i in (0, 2, 4, 1, 3, 5)]  # type: ignore[union-attr]
    backend = ScriptedBackend(lambda prompt: f" {prompt[-1]}")
    assert program.compile().run(backend=backend)["a"] == [f" {i}" for i in range(6)]
    assert [call.prompt[-1] for call in backend.calls] == list("024135")
    plain = ScriptedBackend(lambda prompt: f" {prompt[-1]}")
    assert program.interpreted().run(backend=plain)["a"] == [f" {i}" for i in range(6)]
    assert [call.prompt[-1] for call in plain.calls] == list("012345")
