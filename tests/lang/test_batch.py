"""run_batch: order, bounds, errors, and that a batch is only parallel execution."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from ramet.lang import GenerationError, ProgramState, function, gen
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.runtime.protocol import InvalidRequestError


@function
def define(s: ProgramState, word: str) -> None:
    s += f"Define {word}:" + gen("d")
    s += f" ({len(s['d'])})"


@function
async def adefine(s: ProgramState, word: str) -> None:
    s += f"Define {word}:" + gen("d")
    s += f" ({len(await s.aio.get('d'))})"


WORDS = [f"word{i}" for i in range(40)]


def answer(prompt: str) -> Reply:
    return Reply(prompt.removeprefix("Define ").upper(), delay=(sum(prompt.encode()) % 7) / 1000)


@pytest.mark.parametrize("program", [define, adefine], ids=["sync", "async"])
def test_results_are_in_order_and_equal_those_of_single_runs(program: object) -> None:
    assert program in (define, adefine)
    chosen = define if program is define else adefine
    backend = ScriptedBackend(answer)
    single = [chosen.run(word, backend=backend).text() for word in WORDS]
    by_name = chosen.run_batch([{"word": word} for word in WORDS], backend=backend)
    by_place = chosen.run_batch([(word,) for word in WORDS], backend=backend, num_threads=3)
    assert [state.text() for state in by_name] == single
    assert [state.text() for state in by_place] == single
    iterator = chosen.run_batch([(word,) for word in WORDS], backend=backend, generator_style=True)
    assert isinstance(iterator, Iterator)
    assert [state.text() for state in iterator] == single
    awaited = asyncio.run(chosen.arun_batch([(word,) for word in WORDS], backend=backend))
    assert [state.text() for state in awaited] == single


def test_empty_batch() -> None:
    assert define.run_batch([], backend=ScriptedBackend()) == []
    assert list(define.run_batch([], backend=ScriptedBackend(), generator_style=True)) == []


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_no_more_run_at_once_than_asked_for(limit: int) -> None:
    backend = ScriptedBackend(Reply("x", delay=0.02))
    before = threading.active_count()
    most_threads = 0

    @function
    def counted(s: ProgramState) -> None:
        nonlocal most_threads
        s += gen("a")
        s["a"]
        most_threads = max(most_threads, threading.active_count())

    counted.run_batch([{}] * 30, backend=backend, num_threads=limit)
    assert backend.max_running == limit
    # The two event loops, where they did not run before, and one thread a body.
    assert most_threads <= before + 2 + limit


@pytest.mark.parametrize("num_threads", [0, -1, 1.5, "many", True])
def test_wrong_bounds_are_refused(num_threads: object) -> None:
    with pytest.raises(InvalidRequestError, match="num_threads"):
        define.run_batch([], backend=ScriptedBackend(), num_threads=num_threads)  # type: ignore[arg-type]


@function
def fragile(s: ProgramState, i: int) -> None:
    if i == 7:
        raise RuntimeError("bad item")
    s += f"{i}" + gen("x")


def test_first_error_ends_the_batch_and_says_which_item() -> None:
    backend = ScriptedBackend(Reply("x", delay=60))
    with pytest.raises(RuntimeError, match="bad item") as raised:
        fragile.run_batch([{"i": i} for i in range(40)], backend=backend, num_threads=40)
    assert "in item 7 of the batch" in raised.value.__notes__
    assert backend.num_running == 0


def test_errors_are_kept_by_item_where_wished() -> None:
    backend = ScriptedBackend(lambda prompt: ValueError("boom") if prompt == "3" else "x")
    states = fragile.run_batch([{"i": i} for i in range(40)], backend=backend, return_errors=True)
    assert len(states) == 40
    assert [i for i, state in enumerate(states) if state.error() is not None] == [3, 7]
    assert isinstance(states[3].error(), GenerationError)
    with pytest.raises(GenerationError, match="boom"):
        states[3]["x"]
    with pytest.raises(GenerationError, match="boom"):
        states[3].sync()
    assert states[3].text() == "3"
    with pytest.raises(RuntimeError, match="bad item"):
        states[7]["x"]
    assert states[8]["x"] == "x"


def test_iterating_raises_at_the_item_and_leaving_early_cancels_the_rest() -> None:
    backend = ScriptedBackend(lambda prompt: Reply("x", delay=0 if int(prompt) < 5 else 60))
    states = fragile.run_batch(
        [{"i": i} for i in range(7)], backend=backend, generator_style=True, num_threads=7
    )
    assert [next(states)["x"] for _ in range(5)] == ["x"] * 5
    states.close()
    assert backend.num_running == 0
    failing = fragile.run_batch(
        [{"i": i} for i in (1, 7, 2)], backend=backend, generator_style=True, num_threads=1
    )
    assert next(failing)["x"] == "x"
    with pytest.raises(RuntimeError, match="bad item"):
        next(failing)


def test_wrong_arguments_name_the_item_and_run_nothing() -> None:
    backend = ScriptedBackend()
    with pytest.raises(InvalidRequestError) as raised:
        define.run_batch([{"word": "a"}, {"wort": "b"}], backend=backend)
    assert "in item 1 of the batch" in raised.value.__notes__
    with pytest.raises(TypeError) as missing:
        define.run_batch([{"word": "a"}, {}], backend=backend)
    assert "in item 1 of the batch" in missing.value.__notes__
    assert not backend.calls


def test_options_hold_for_all_items() -> None:
    backend = ScriptedBackend()
    define.run_batch([{"word": "a"}, {"word": "b"}], backend=backend, temperature=0, progress_bar=True)
    assert [call.params.temperature for call in backend.calls if call.params] == [0, 0]


def test_batches_inside_programs() -> None:
    @function
    def outer(s: ProgramState, i: int) -> list[str]:
        states = define.run_batch([{"word": f"{i}{j}"} for j in range(3)], backend=ScriptedBackend(answer))
        return [state["d"] for state in states]

    states = outer.run_batch([{"i": i} for i in range(6)], backend=ScriptedBackend(), num_threads=2)
    assert states[4].ret_value == ["40:", "41:", "42:"]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"word": "a"}, "batch_kwargs is a dict; it must be a list"),
        ("ab", "batch_kwargs is a str"),
        (iter([("a",)]), "batch_kwargs is a list_iterator"),
        ([("a",), "b"], r"batch_kwargs\[1\] is 'b'; it must be a dict or a tuple"),
        ([1], r"batch_kwargs\[0\] is 1"),
    ],
)
def test_items_that_are_none(items: object, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        define.run_batch(items, backend=ScriptedBackend())  # type: ignore[arg-type]
