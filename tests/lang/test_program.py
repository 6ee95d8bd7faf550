"""Programs: arguments, options, nesting, the body's own errors, sync and async."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ramet.lang import (
    GenerationError,
    Program,
    ProgramCancelledError,
    ProgramState,
    ProgramStructureError,
    assistant,
    function,
    gen,
    select,
    set_default_backend,
    system,
    user,
)
from ramet.lang.backends.base import Prompt
from ramet.lang.backends.scripted import Reply, ScriptedBackend
from ramet.runtime.protocol import InvalidRequestError, SamplingParams


@function
def question(s: ProgramState, topic: str, *, mark: str = "?") -> str:
    s += system("Be brief.")
    s += user(f"What is {topic}{mark}")
    s += assistant(gen("answer"))
    return "returned"


def test_run_waits_for_everything_and_gives_the_state() -> None:
    backend = ScriptedBackend({"answer": Reply("cold water", delay=0.02)})
    state = question.run("ice", backend=backend)
    assert backend.calls[0].state == "finished"
    assert state["answer"] == "cold water"
    assert state.ret_value == "returned"
    assert state.text() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is ice?<|im_end|>\n"
        "<|im_start|>assistant\ncold water<|im_end|>\n"
    )
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is ice?"},
        {"role": "assistant", "content": "cold water"},
    ]
    assert state.error() is None
    state.sync()


def test_decorator_with_and_without_call() -> None:
    @function()
    def called(s: ProgramState) -> None:
        """Says a."""
        s += "a"

    assert isinstance(called, Program)
    assert called.__doc__ == "Says a."
    assert called.run(backend=ScriptedBackend()).text() == "a"
    assert repr(question) == "<Program question(topic: str, *, mark: str = '?') -> str>"


def test_state_parameter_may_have_any_name() -> None:
    @function
    def named(conversation: ProgramState, s: str) -> None:
        conversation += s

    assert named.run(s="x", backend=ScriptedBackend()).text() == "x"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: function(lambda: None), "takes no state"),
        (lambda: function(lambda *, s: None), "takes no state"),
        (lambda: function(lambda s, backend: None), "'backend'"),
        (lambda: function(lambda s, stream: None), "'stream'"),
        (lambda: function(3), "not before 3"),  # type: ignore[call-overload]
    ],
)
def test_what_is_no_program_is_refused_where_it_is_written(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ProgramStructureError, match=words):
        make()


def test_generators_are_no_programs() -> None:
    def yields(s: ProgramState) -> object:
        yield s

    with pytest.raises(ProgramStructureError, match="yield"):
        function(yields)


def test_run_options_hold_for_gens_that_do_not_give_their_own() -> None:
    @function
    def two(s: ProgramState) -> None:
        s += gen("a") + gen("b", temperature=0.5, max_tokens=7)

    backend = ScriptedBackend()
    two.run(backend=backend, temperature=0, max_new_tokens=3, stop=["\n"])
    first, second = (call.params for call in backend.calls)
    assert first is not None
    assert second is not None
    assert (first.temperature, first.max_tokens, first.stop) == (0, 3, ("\n",))
    assert (second.temperature, second.max_tokens, second.stop) == (0.5, 7, ("\n",))


def test_sampling_params_as_a_whole_and_options_over_them() -> None:
    @function
    def one(s: ProgramState) -> None:
        s += gen("a", top_p=0.5)

    backend = ScriptedBackend()
    one.run(backend=backend, sampling_params=SamplingParams(temperature=0.3, max_tokens=9), max_tokens=4)
    assert backend.calls[0].params == SamplingParams(temperature=0.3, max_tokens=4, top_p=0.5)


def test_without_options_the_defaults_are_those_of_sampling_params() -> None:
    @function
    def one(s: ProgramState) -> None:
        s += gen("a")

    backend = ScriptedBackend()
    one.run(backend=backend)
    one.run(backend=backend, max_tokens=None)
    assert backend.calls[0].params == SamplingParams()
    assert backend.calls[1].params == SamplingParams(max_tokens=None)


def test_own_parameter_wins_over_a_sampling_option_of_the_same_name() -> None:
    @function
    def many(s: ProgramState, n: int) -> None:
        s += f"{n}" + gen("a")

    backend = ScriptedBackend()
    assert many.run(n=3, backend=backend).text() == "3ok"
    assert backend.calls[0].params is not None
    assert backend.calls[0].params.n == 1


def test_run_seed_gives_every_call_its_own_and_repeats() -> None:
    @function
    def forked(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += gen("a") + gen("b")
        branches += gen("c", seed=5) + select("d", ["ok", "no"], temperature=1.0)

    seeds: list[dict[tuple[str, str], int | None]] = []
    for _ in range(2):
        backend = ScriptedBackend()
        forked.run(backend=backend, seed=1)
        seeds.append({(call.tag.branch, call.tag.variable): call.seed for call in backend.calls})
    assert seeds[0] == seeds[1]
    assert [seeds[0][f"0/{i}", "c"] for i in range(3)] == [5, 5, 5]
    drawn = [seed for (_, name), seed in seeds[0].items() if name != "c"]
    assert len(set(drawn)) == 9
    assert None not in drawn


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"topic": "x", "temprature": 0}, InvalidRequestError, "did you mean 'temperature'"),
        ({"topic": "x", "temperature": -1}, InvalidRequestError, "temperature is -1"),
        ({}, TypeError, "program question: missing a required argument: 'topic'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    kwargs: dict[str, Any], error: type[Exception], words: str
) -> None:
    backend = ScriptedBackend()
    with pytest.raises(error, match=words):
        question.run(**kwargs, backend=backend)
    assert not backend.calls


def test_default_backend() -> None:
    set_default_backend(None)
    with pytest.raises(ProgramStructureError, match="set_default_backend"):
        question.run("x")
    try:
        set_default_backend(ScriptedBackend("yes"))
        assert question.run("x")["answer"] == "yes"
        assert question.run("x", backend=ScriptedBackend("no"))["answer"] == "no"
    finally:
        set_default_backend(None)


def test_bind_gives_arguments_ahead() -> None:
    bound = question.bind(mark="!")
    assert "ice!" in bound.run("ice", backend=ScriptedBackend()).text()
    assert "ice;" in bound.run("ice", mark=";", backend=ScriptedBackend()).text()
    assert "ice?" in question.run("ice", backend=ScriptedBackend()).text()
    with pytest.raises(InvalidRequestError, match="did you mean 'topic'"):
        question.bind(topik="x")


def test_a_program_inside_another_goes_on_with_its_state() -> None:
    @function
    def inner(s: ProgramState, name: str) -> str:
        s += f"[{name}:" + gen(name) + "]"
        return str(s[name])

    @function
    def outer(s: ProgramState) -> None:
        first = inner(s, "a")
        assert first == "ok"
        s += inner.bind(name="b")
        forks = s.fork(2)
        forks += inner.bind(name="c")
        forks.join()
        inner(s, name="d")

    state = outer.run(backend=ScriptedBackend())
    assert state.text() == "[a:ok][b:ok][d:ok]"
    assert state["c"] == ["ok", "ok"]


def test_called_without_a_state_it_runs() -> None:
    try:
        set_default_backend(ScriptedBackend())
        assert question("x")["answer"] == "ok"
    finally:
        set_default_backend(None)


def test_programs_tag_their_calls() -> None:
    @function
    def tagged(s: ProgramState) -> None:
        s += gen("a")
        first = s.fork(2)
        first += gen("b")
        second = s.fork(1)
        second += gen("c")
        inner = first[1].fork(1)
        inner += gen() + select("d", ["ok"])

    backend = ScriptedBackend()
    tagged.run(backend=backend)
    tags = {(call.tag.branch, call.tag.step, call.tag.variable) for call in backend.calls}
    assert tags == {
        ("0", 0, "a"),
        ("0/0", 1, "b"),
        ("0/1", 1, "b"),
        ("0/2", 1, "c"),
        ("0/1/0", 2, ""),
        ("0/1/0", 3, "d"),
    }
    assert len({call.tag.program_id for call in backend.calls}) == 1
    tagged.run(backend=backend)
    assert len({call.tag.program_id for call in backend.calls}) == 2


def test_error_of_the_body_is_raised_after_what_it_started_has_ended() -> None:
    backend = ScriptedBackend(Reply("slow", delay=60))

    @function
    def broken(s: ProgramState) -> None:
        s += gen("a")
        branches = s.fork(3)
        branches += gen("b")
        raise RuntimeError("my own mistake")

    with pytest.raises(RuntimeError, match="my own mistake") as raised:
        broken.run(backend=backend)
    assert raised.value.__notes__ == ["in program 'broken'"]
    assert backend.num_running == 0
    assert {call.state for call in backend.calls} <= {"cancelled"}


def test_interrupt_cancels_everything_and_is_raised() -> None:
    backend = ScriptedBackend({"a": "now", "b": Reply("slow", delay=60)})

    @function
    def interrupted(s: ProgramState) -> None:
        branches = s.fork(5)
        branches += gen("b")
        s += gen("a")
        assert s["a"] == "now"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.run(backend=backend)
    assert backend.num_running == 0
    assert [call.state for call in backend.calls if call.tag.variable == "b"] == ["cancelled"] * 5


def test_failed_call_that_nobody_reads_is_raised_at_the_end() -> None:
    @function
    def careless(s: ProgramState) -> None:
        s += "text" + gen("a")

    with pytest.raises(
        GenerationError, match=r"ValueError: boom \(in program 'careless', .*'0', .*'a'\)"
    ) as raised:
        careless.run(backend=ScriptedBackend(ValueError("boom")))
    assert isinstance(raised.value.__cause__, ValueError)
    assert (raised.value.program, raised.value.branch, raised.value.variable) == ("careless", "0", "a")


def test_unnamed_call_that_fails_is_raised_at_the_end() -> None:
    @function
    def careless(s: ProgramState) -> None:
        s += gen()

    with pytest.raises(GenerationError, match="boom"):
        careless.run(backend=ScriptedBackend(ValueError("boom")))


def test_an_error_that_the_body_has_dealt_with_is_not_raised_again() -> None:
    @function
    def careful(s: ProgramState) -> str:
        attempt = s.copy()
        attempt += gen("a")
        try:
            return str(attempt["a"])
        except GenerationError:
            s += "instead" + gen("b")
            return str(s["b"])

    backend = ScriptedBackend({"a": ValueError("boom"), "b": "fine"})
    state = careful.run(backend=backend)
    assert state.ret_value == "fine"
    assert state.text() == "insteadfine"


def test_state_takes_nothing_after_its_program_has_ended() -> None:
    state = question.run("x", backend=ScriptedBackend())
    with pytest.raises(ProgramStructureError, match="the program has ended"):
        state += "more"
    with pytest.raises(ProgramStructureError, match="the program has ended"):
        state.fork(2)


def test_programs_on_many_threads_do_not_meet() -> None:
    @function
    def echo(s: ProgramState, k: int) -> None:
        s += f"k={k} " + gen("j", dtype=int)

    backend = ScriptedBackend(lambda prompt: prompt.removeprefix("k=").strip())
    with ThreadPoolExecutor(8) as executor:
        states = list(executor.map(lambda k: echo.run(k=k, backend=backend), range(64)))
    assert [state["j"] for state in states] == list(range(64))


def test_async_program() -> None:
    @function
    async def chat(s: ProgramState, topic: str) -> str:
        s += f"{topic}:" + gen("a", dtype=int)
        value = await s.aio.get("a")
        s += gen("b")
        await s.aio.sync()
        assert await s.aio.error() is None
        assert (await s.aio.get_meta_info("b"))["finish_reason"] == "stop"
        return f"{value} {await s.aio.text()} {await s.aio.messages()}"

    backend = ScriptedBackend({"a": "12", "b": "x"})
    expected = "12 t:12x []"
    assert chat.run("t", backend=backend).ret_value == expected
    assert asyncio.run(chat.arun("t", backend=backend)).ret_value == expected

    async def in_a_running_loop() -> object:
        return (await chat.arun("t", backend=backend)).ret_value

    assert asyncio.run(in_a_running_loop()) == expected


def test_async_body_runs_on_the_callers_loop() -> None:
    @function
    async def where(s: ProgramState) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def main() -> bool:
        state = await where.arun(backend=ScriptedBackend())
        return state.ret_value is asyncio.get_running_loop()

    assert asyncio.run(main())


def test_sync_program_awaited_leaves_the_loop_free() -> None:
    context: contextvars.ContextVar[str] = contextvars.ContextVar("context", default="lost")

    @function
    def waits(s: ProgramState) -> tuple[str, bool]:
        s += gen("a")
        return s["a"] + context.get(), threading.current_thread() is threading.main_thread()

    async def main() -> list[object]:
        context.set("kept")
        backend = ScriptedBackend(Reply("x", delay=0.01))
        states = await asyncio.gather(*(waits.arun(backend=backend) for _ in range(20)))
        return [state.ret_value for state in states]

    assert asyncio.run(main()) == [("xkept", False)] * 20


@pytest.mark.parametrize("is_async", [False, True])
def test_cancelling_arun_ends_what_runs(is_async: bool) -> None:
    backend = ScriptedBackend(Reply("slow", delay=60))
    seen: list[BaseException] = []
    body_ended = threading.Event()

    @function
    def waits(s: ProgramState) -> None:
        branches = s.fork(4)
        branches += gen("b")
        try:
            branches[0]["b"]
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            body_ended.set()

    @function
    async def awaits(s: ProgramState) -> None:
        branches = s.fork(4)
        branches += gen("b")
        try:
            await branches[0].aio.get("b")
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            body_ended.set()

    async def main() -> None:
        task = asyncio.create_task((awaits if is_async else waits).arun(backend=backend))
        while backend.num_running < 4:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.num_running == 0

    asyncio.run(main())
    assert body_ended.wait(60)
    assert [type(error) for error in seen] == [asyncio.CancelledError if is_async else ProgramCancelledError]


def test_async_errors() -> None:
    @function
    async def broken(s: ProgramState, how: str) -> None:
        s += gen("a")
        if how == "read":
            await s.aio.get("a")
        if how == "body":
            raise RuntimeError("mine")

    backend = ScriptedBackend(ValueError("boom"))
    for how, kind in (("read", GenerationError), ("unread", GenerationError), ("body", RuntimeError)):
        with pytest.raises(kind):
            broken.run(how, backend=backend)
        with pytest.raises(kind):
            asyncio.run(broken.arun(how, backend=backend))


def test_async_program_inside_an_async_program() -> None:
    @function
    async def inner(s: ProgramState) -> str:
        s += gen("a")
        return str(await s.aio.get("a"))

    @function
    async def outer(s: ProgramState, how: str) -> str:
        if how == "call":
            return str(await inner(s))
        if how == "arun":
            return str((await inner.arun(backend=ScriptedBackend("other")))["a"])
        if how == "say":
            s += inner
        return str(inner.run(backend=ScriptedBackend("other"))["a"])

    backend = ScriptedBackend()
    assert outer.run("call", backend=backend).ret_value == "ok"
    assert outer.run("arun", backend=backend).ret_value == "other"
    with pytest.raises(ProgramStructureError, match="await inner"):
        outer.run("say", backend=backend)
    # It would wait on its own loop for ever.
    with pytest.raises(ProgramStructureError, match="arun"):
        outer.run("run", backend=backend)


def test_waiting_for_a_program_in_a_backends_callback_is_refused() -> None:
    @function
    def inner(s: ProgramState) -> None:
        s += gen("a")

    backend = ScriptedBackend(lambda prompt: str(inner.run(backend=ScriptedBackend())["a"]))
    with pytest.raises(ProgramStructureError, match="a backend's callback waits for a program"):
        inner.run(backend=backend)


def test_words_of_sglang_that_mean_nothing_here_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="num_api_spec_tokens is 64"):
        function(num_api_spec_tokens=64)
    assert isinstance(function(num_api_spec_tokens=None)(question.__wrapped__), Program)  # type: ignore[attr-defined]
    assert question.run("ice", use_thread=True, backend=ScriptedBackend())["answer"] == "ok"
    with pytest.raises(InvalidRequestError, match="use_thread is False"):
        question.run("ice", use_thread=False, backend=ScriptedBackend())


class SaltedBackend(ScriptedBackend):
    """Remembers with which salts prompts were begun."""

    def __init__(self) -> None:
        super().__init__()
        self.salts: list[str] = []

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        self.salts.append(cache_salt)
        return super().prompt(cache_salt=cache_salt)


def test_a_run_has_a_cache_salt() -> None:
    backend = SaltedBackend()
    question.run("ice", backend=backend)
    question.run("ice", backend=backend, cache_salt="ada")
    question.run_batch([{"topic": "ice"}, {"topic": "fire", "cache_salt": "eve"}], backend=backend)
    assert backend.salts[:2] == ["", "ada"]
    assert sorted(backend.salts[2:]) == ["", "eve"]
    with pytest.raises(InvalidRequestError, match="cache_salt is 3"):
        question.run("ice", backend=backend, cache_salt=3)
