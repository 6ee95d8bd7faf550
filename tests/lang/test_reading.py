"""Reading from outside and in the program: streams give exactly the finished text, and always end."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ramet.lang import (
    GenerationError,
    ProgramCancelledError,
    ProgramState,
    ProgramStructureError,
    UnknownVariableError,
    assistant,
    function,
    gen,
    select,
    separate_reasoning,
    user,
)
from ramet.lang.backends.base import Prompt
from ramet.lang.backends.scripted import Reply, ScriptedAnswers, ScriptedBackend
from ramet.lang.backends.transcript import Transcript, TranscriptPrompt


@function
def story(s: ProgramState) -> None:
    s += user("Pick: ") + "and "
    s += select("k", ["tea", "milk"])
    s += assistant(" because " + gen("v", stop="END") + gen("w", n=2))
    branches = s.fork(2)
    branches += gen("x")
    branches.join()
    s += gen("last")


SCRIPT: dict[str, Any] = {
    "k": "milk",
    "v": Reply("🍋🍋 東京 it is EN white END never", token_delay=0.001),
    "w": "w",
    "x": "x",
    "last": Reply("the last words", delay=0.01, token_delay=0.001),
}


@function
async def async_story(s: ProgramState) -> None:
    story(s)


@pytest.mark.parametrize("program", [story, async_story], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["k", "v", "last", None])
def test_a_stream_from_outside_is_the_finished_text(program: Any, name: str | None) -> None:
    state = program.stream(backend=ScriptedBackend(SCRIPT))
    chunks = list(state.text_iter(name))
    assert "".join(chunks) == (state.text() if name is None else state[name])
    assert all(chunks)
    # Again, now that it has ended.
    assert "".join(state.text_iter(name)) == "".join(chunks)
    assert state["v"] == "🍋🍋 東京 it is EN white "


def test_a_stream_comes_as_it_is_generated() -> None:
    state = story.run(backend=ScriptedBackend(SCRIPT), stream=True)
    assert list(state.text_iter("last")) == ["the", " last", " words"]


@pytest.mark.parametrize("name", ["k", "v", None])
def test_asynchronous_streams(name: str | None) -> None:
    async def main(program: Any) -> None:
        state = program.stream(backend=ScriptedBackend(SCRIPT))
        text = "".join([chunk async for chunk in state.text_async_iter(name)])
        assert text == (await state.aio.text() if name is None else await state.aio.get(name))
        pairs = [pair async for pair in state.text_async_iter("v", return_meta_data=True)]
        assert "".join(text for text, _ in pairs) == await state.aio.get("v")
        ids = tuple(token_id for _, meta in pairs for token_id in meta.get("token_ids", ()))
        assert ids == (await state.aio.get_meta_info("v"))["token_ids"]

    asyncio.run(main(story))
    asyncio.run(main(async_story))


def test_streams_in_the_program_end_where_it_has_got_to() -> None:
    @function
    def program(s: ProgramState) -> list[str]:
        s += "A: " + gen("a")
        seen = ["".join(s.text_iter()), "".join(s.text_iter("a"))]
        s += " B: " + gen("b")
        seen.append("".join(s.text_iter()))
        branch = s.fork(1)[0]
        branch += "!"
        return [*seen, "".join(branch.text_iter())]

    state = program.run(backend=ScriptedBackend(Reply("x y", token_delay=0.002)))
    assert state.ret_value == ["A: x y", "x y", "A: x y B: x y", "A: x y B: x y!"]


@pytest.mark.parametrize(("name", "kind"), [("nope", UnknownVariableError), ("x", ProgramStructureError)])
def test_names_without_a_text_end_with_an_error(name: str, kind: type[Exception]) -> None:
    state = story.stream(backend=ScriptedBackend(SCRIPT))
    with pytest.raises(kind):
        list(state.text_iter(name))
    with pytest.raises(UnknownVariableError):
        state["nope"]


def until_the_error(chunks: Iterator[str], kind: type[Exception], words: str) -> str:
    """What came before the error that must come."""
    seen: list[str] = []

    def read() -> None:
        for chunk in chunks:
            seen.append(chunk)

    with pytest.raises(kind, match=words):
        read()
    return "".join(seen)


def test_errors_come_after_the_text_before_them() -> None:
    may_go_on = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        s += "start "
        s.sync()
        assert may_go_on.wait(60)
        s += gen("a")

    backend = ScriptedBackend(Reply("one two three", error=OSError("gone"), fail_after=2))
    state = program.stream(backend=backend)
    whole = state.text_iter()
    may_go_on.set()
    assert next(whole) == "start "
    assert until_the_error(whole, GenerationError, "OSError: gone") == "one two"
    for _ in range(2):
        assert until_the_error(state.text_iter("a"), GenerationError, "OSError: gone") == "one two"
    with pytest.raises(GenerationError):
        state.sync()
    assert isinstance(state.error(), GenerationError)


def test_errors_of_the_body_reach_whoever_reads() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "start " + gen("a")
        s["a"]
        raise RuntimeError("mine")

    state = program.stream(backend=ScriptedBackend())
    assert until_the_error(state.text_iter(), RuntimeError, "mine") == "start ok"
    for read in (lambda: state["later"], state.sync):
        with pytest.raises(RuntimeError, match="mine"):
            read()
    assert state["a"] == "ok"
    assert state.text() == "start ok"

    async def read_all(chunks: AsyncIterator[str]) -> None:
        async for _ in chunks:
            pass

    async def main() -> None:
        async_state = program.stream(backend=ScriptedBackend())
        with pytest.raises(RuntimeError, match="mine"):
            await read_all(async_state.text_async_iter())
        assert isinstance(await async_state.aio.error(), RuntimeError)

    asyncio.run(main())


def test_leaving_a_stream_cancels_its_program() -> None:
    ended = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        s += gen("a") + gen("b")
        try:
            s["b"]
        finally:
            ended.set()

    backend = ScriptedBackend({"a": "x", "b": Reply("y", delay=60)})
    with program.stream(backend=backend) as state:
        assert state["a"] == "x"
    assert ended.wait(60)
    assert isinstance(state.error(), ProgramCancelledError)
    assert backend.num_running == 0
    with program.stream(backend=ScriptedBackend()) as state:
        state.sync()
    assert state.error() is None


def test_the_error_of_an_abandoned_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        ended.set()
        raise RuntimeError("nobody reads this")

    with caplog.at_level(logging.ERROR, "ramet.lang.reading"):
        program.stream(backend=ScriptedBackend())
        assert ended.wait(60)
        for _ in range(1000):
            gc.collect()
            if caplog.records:
                break
            threading.Event().wait(0.005)
    assert "nobody reads this" in caplog.text


def test_reasoning_streams() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += separate_reasoning(gen("a"), model_type="deepseek-r1")

    state = program.stream(backend=ScriptedBackend(" let me see </think> the answer "))
    assert list(state.text_iter("a_reasoning_content")) == ["let", " me", " see"]
    assert "".join(state.text_iter("a")) == state["a"] == "the answer "
    assert state["a_reasoning_content"] == "let me see"


class TrimmingAnswers(ScriptedAnswers):
    """A template that trims a message at its end, as Gemma's does."""

    def text_of(self, transcript: Transcript) -> str:
        return super().text_of(transcript).replace(" <|im_end|>", "<|im_end|>")


class TrimmingBackend(ScriptedBackend):
    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return TranscriptPrompt(TrimmingAnswers(self), Transcript())


def test_a_text_that_the_template_has_changed_is_not_streamed_wrongly() -> None:
    may_go_on = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        with s.user():
            s += "x " + gen("a")
            s.sync()
            assert may_go_on.wait(60)

    state = program.stream(backend=TrimmingBackend("ok "))
    whole = state.text_iter()
    seen = [next(whole)]
    may_go_on.set()
    with pytest.raises(ProgramStructureError, match="changed text that was streamed"):
        seen.extend(whole)
    assert "".join(state.text_iter("a")) == "ok "


class RefusingAnswers(ScriptedAnswers):
    """A template that refuses what its model has said."""

    def text_of(self, transcript: Transcript) -> str:
        if "ok" in (text := super().text_of(transcript)):
            raise ValueError("roles must alternate")
        return text


class RefusingBackend(ScriptedBackend):
    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return TranscriptPrompt(RefusingAnswers(self), Transcript())


def test_a_text_that_the_template_refuses_is_an_error_for_who_asks() -> None:
    told: list[str] = []

    @function
    def program(s: ProgramState) -> None:
        s += "x " + gen("a")
        try:
            s.text()
        except GenerationError as error:
            told.append(error.message)

    state = program.run(backend=RefusingBackend("ok"))
    assert told == ["ValueError: roles must alternate"]
    assert state["a"] == "ok"
    with pytest.raises(GenerationError, match="roles must alternate"):
        state.text()
    for _ in range(2):
        streamed = program.stream(backend=RefusingBackend("ok"))
        assert until_the_error(streamed.text_iter(), GenerationError, "roles must alternate") in ("", "x ok")
    assert until_the_error(streamed.text_iter(), GenerationError, "roles must alternate") == ""


def test_what_the_template_changes_before_a_call_is_streamed_as_the_model_reads_it() -> None:
    @function
    def program(s: ProgramState) -> None:
        with s.user():
            s += "x "
            s.sync()
        s += assistant(gen("a")) + user("y ")

    state = program.stream(backend=TrimmingBackend("ok"))
    assert "".join(state.text_iter()) == state.text()
    assert "x<|im_end|>" in state.text()


@function
def raises_later(s: ProgramState) -> None:
    s += "x" + gen("v")
    raise ValueError("the body's own")


READS: dict[str, Callable[[ProgramState], object]] = {
    "value": lambda state: state["v"],
    "meta": lambda state: state.get_meta_info("v"),
    "text": lambda state: list(state.text_iter("v")),
    "all": lambda state: list(state.text_iter()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_was_cancelled_since_the_body_raised_tells_of_that(read: Callable[[ProgramState], object]) -> None:
    state = raises_later.stream(backend=ScriptedBackend({"v": Reply("never", delay=60)}))
    with pytest.raises(ValueError, match="the body's own"):
        read(state)


def test_a_run_of_a_batch_that_failed_raises_its_error_where_it_is_read() -> None:
    backend = ScriptedBackend({"v": Reply("never", delay=60)})
    (state,) = raises_later.run_batch([()], backend=backend, return_errors=True)
    with pytest.raises(ValueError, match="the body's own"):
        _ = state["v"]

    async def reads() -> None:
        with pytest.raises(ValueError, match="the body's own"):
            await state.aio.get("v")
        with pytest.raises(ValueError, match="the body's own"):
            await anext(state.text_async_iter("v"))

    asyncio.run(reads())


@function
def fails(s: ProgramState) -> None:
    s += "x" + gen("v", dtype=int) + gen("w")


@pytest.mark.parametrize("read", [*READS.values(), lambda state: state["w"]], ids=[*READS, "behind"])
def test_an_error_that_somebody_read_is_not_logged(
    read: Callable[[ProgramState], object], caplog: pytest.LogCaptureFixture
) -> None:
    def reads() -> None:
        state = fails.stream(backend=ScriptedBackend({"v": "no number", "w": "w"}))
        with pytest.raises(ProgramStructureError, match="the script says"):
            read(state)
        state.text()  # Which waits for the end, and asks for no error.

    with caplog.at_level(logging.ERROR):
        reads()
        gc.collect()
    assert "nobody asked" not in caplog.text
