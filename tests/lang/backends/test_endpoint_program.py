"""Programs that are sent whole to a ramet server give what they give in this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import ramet
from ramet.lang.backends.endpoint import RuntimeEndpoint
from ramet.lang.backends.local import LocalBackend
from ramet.lang.errors import BranchError, GenerationError, ProgramCancelledError, ToolError
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.program_runs import ProgramRuns
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.constrained_engine import open_face
from tests.lang.backends.random_engine import CONTEXT
from tests.runtime.server.speaking_server import Live, live_engine

SECONDS = 60.0


@dataclass
class Pair:
    here: LocalBackend
    there: RuntimeEndpoint
    runs: ProgramRuns
    server: Live
    engine: EngineFace

    @property
    def num_sent(self) -> int:
        """Programs that the server ran as a whole."""
        return self.runs.num_started

    @property
    def num_computed(self) -> int:
        """Requests that the engine has finished."""
        return self.engine.stats().finished_requests


@contextmanager
def opened(config: ServerConfig, **options: Any) -> Iterator[Pair]:
    face = open_face()
    assert isinstance(face.tokenizer, FastTokenizer)
    with (
        face,
        live_engine(face, face.tokenizer.spec, config) as server,
        RuntimeEndpoint(server.url, **options) as there,
    ):
        runs: ProgramRuns = server.server.config.app.state.server.program_runs  # type: ignore[union-attr]
        yield Pair(LocalBackend(face), there, runs, server, face)
        wait_for(lambda: runs.num_live == 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with opened(ServerConfig(drain_timeout=1.0)) as one:
        yield one


def wait_for(condition: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


def both(pair: Pair, program: ramet.Program, **arguments: Any) -> tuple[Any, Any]:
    """The program's states, here and there; there it was sent whole."""
    before = pair.num_sent
    here = program.compile().run(backend=pair.here, **arguments)
    there = program.compile().run(backend=pair.there, **arguments)
    assert pair.num_sent == before + 1
    return here, there


@ramet.function
def everything(s: Any, text: str = "http:") -> None:
    s += ramet.system("Be there.")
    s += ramet.user("Is it " + text)
    s += ramet.assistant(ramet.gen("first", max_tokens=8, temperature=0, logprobs=2))
    s += ramet.user("And?") + ramet.assistant_begin() + "It is http:"
    branches = s.fork(3)
    branches += ramet.gen("branch", max_tokens=5, seed=4)
    branches.join()
    s += ramet.select("chosen", choices=["//Paris", " there", "the"])
    s += ramet.select(
        "alone", choices=["//Paris", " there"], choices_method=ramet.unconditional_likelihood_normalized
    )
    with s.var_scope("scope"):
        s += "a " + ramet.gen("inner", max_tokens=3, seed=2)
    s += ramet.gen("several", n=3, max_tokens=4, seed=1) + ramet.assistant_end()


def test_a_program_sent_whole_is_the_same_as_in_process(pair: Pair) -> None:
    here, there = both(pair, everything)
    assert there.text() == here.text()
    assert there.messages() == here.messages()
    for name in ("first", "branch", "chosen", "alone", "scope", "inner", "several"):
        assert there[name] == here[name], name
    for key in ("token_ids", "logprobs", "finish_reason", "prompt_tokens", "completion_tokens"):
        assert there.get_meta_info("first")[key] == here.get_meta_info("first")[key]
    assert there.get_meta_info("chosen")["scores"] == here.get_meta_info("chosen")["scores"]


def test_values_that_are_only_said_are_said_there(pair: Pair) -> None:
    @ramet.function
    def chain(s: Any) -> None:
        s += ramet.user("one") + ramet.assistant(ramet.gen("one", max_tokens=4, seed=1))
        s += ramet.user(f"again: {s['one']}") + ramet.assistant(ramet.gen("two", max_tokens=4, seed=1))

    here, there = both(pair, chain)
    assert there.text() == here.text()
    assert f"again: {there['one']}" in there.text()


def test_branches_are_joined_by_what_they_said(pair: Pair) -> None:
    @ramet.function
    def outline(s: Any) -> None:
        s += ramet.user("points") + ramet.assistant_begin()
        forks = s.fork(3)
        for number, fork in enumerate(forks):
            fork += f"{number}: " + ramet.gen("point", max_tokens=3, seed=number)
        forks.join("concate_and_append")
        s += ramet.gen("end", max_tokens=3, seed=0) + ramet.assistant_end()

    here, there = both(pair, outline)
    assert there.text() == here.text()


def test_a_seeded_run_and_answers_without_names(pair: Pair) -> None:
    @ramet.function
    def unnamed(s: Any) -> None:
        s += ramet.user("a") + ramet.assistant(ramet.gen(max_tokens=4))
        s += ramet.user("b") + ramet.assistant(ramet.gen(max_tokens=4) + ramet.gen("x", max_tokens=2))

    here, there = both(pair, unnamed, seed=7)
    assert there.text() == here.text()


def test_what_it_streams_is_what_it_says(pair: Pair) -> None:
    state = everything.compile().stream(backend=pair.there)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == everything.run(backend=pair.here).text()


@ramet.function
def reads(s: Any) -> None:
    s += ramet.user("one") + ramet.assistant(ramet.gen("one", max_tokens=4, seed=1))
    if len(s["one"]) > 1000:
        s += ramet.user("long")
    s += ramet.user("two") + ramet.assistant(ramet.gen("two", max_tokens=4, seed=1))


def test_a_program_that_reads_a_value_is_called_call_by_call(pair: Pair) -> None:
    before = pair.num_sent
    assert reads.run(backend=pair.there).text() == reads.run(backend=pair.here).text()
    assert pair.num_sent == before


def test_so_are_those_that_would_gain_nothing_or_are_not_to_be_compiled(pair: Pair) -> None:
    @ramet.function
    def once(s: Any) -> None:
        s += ramet.user("one") + ramet.assistant(ramet.gen("one", max_tokens=4, seed=1))

    before = pair.num_sent
    once.compile().run(backend=pair.there)
    everything.interpreted().run(backend=pair.there)
    assert pair.num_sent == before


@pytest.mark.parametrize(
    ("config", "options"),
    [({}, {"whole_programs": False}), ({}, {"token_healing": False}), ({"max_programs": 0}, {})],
)
def test_it_can_be_left_out(config: dict[str, Any], options: dict[str, Any]) -> None:
    with opened(ServerConfig(drain_timeout=1.0, **config), **options) as pair:
        assert not pair.there.takes_whole
        everything.compile().run(backend=pair.there)
        assert pair.num_sent == 0


def test_what_a_body_returns_is_read_once_all_was_sent(pair: Pair) -> None:
    @ramet.function
    def skeleton(s: Any) -> Any:
        s += ramet.user("points") + ramet.assistant(ramet.gen("points", max_tokens=4, seed=1))
        forks = s.fork(2)
        forks += ramet.user("more") + ramet.assistant(ramet.gen("text", max_tokens=4, temperature=0))
        forks.join()
        return [s["points"], *(text.strip() for text in s["text"])]

    here, there = both(pair, skeleton)
    assert there.ret_value == here.ret_value == [there["points"], *(text.strip() for text in there["text"])]


def test_equal_calls_of_a_program_sent_whole_are_made_once(pair: Pair) -> None:
    @ramet.function
    def voters(s: Any) -> None:
        s += ramet.user("Is it?") + ramet.assistant_begin()
        forks = s.fork(4)
        forks += ramet.gen("vote", max_tokens=6, temperature=0) + ramet.select("sure", choices=["yes", "no"])
        forks.join()
        s += ramet.gen("end", max_tokens=3, temperature=0)

    before = pair.num_computed
    here = voters.interpreted().run(backend=pair.here)
    between = pair.num_computed
    there = voters.compile().run(backend=pair.there)
    assert there.text() == here.text()
    assert (there["vote"], there["sure"]) == (here["vote"], here["sure"])
    assert len(set(there["vote"])) == 1
    assert (between - before, pair.num_computed - between) == (4 + 4 + 1, 1 + 1 + 1)


def test_a_batch_is_sent_program_by_program(pair: Pair) -> None:
    items = [{"text": text} for text in ("http:", "there", "//")]
    before = pair.num_sent
    there = everything.compile().run_batch(items, backend=pair.there)
    assert pair.num_sent == before + 3
    here = everything.run_batch(items, backend=pair.here)
    assert [state.text() for state in there] == [state.text() for state in here]


def look(where: Literal["left", "right"]) -> str:
    """Looks."""
    return f"there is a door on the {where}"


def fails(where: Literal["left", "right"]) -> str:
    """Fails."""
    raise OSError(f"it is dark on the {where}")


def agent_of(tool: Any, **options: Any) -> ramet.Program:
    @ramet.function
    def agent(s: Any) -> None:
        s += ramet.user("Where?")
        s += ramet.assistant(
            ramet.gen(
                "answer",
                tools=[tool],
                tool_choice="required",
                max_tool_rounds=1,
                max_tokens=700,
                seed=3,
                **options,
            )
        )
        s += ramet.user("Sure?") + ramet.assistant(ramet.gen("sure", max_tokens=4, seed=1))

    return agent


@pytest.mark.parametrize("tool", [look, fails])
def test_tools_run_here_and_their_results_are_told_there(pair: Pair, tool: Any) -> None:
    here, there = both(pair, agent_of(tool))
    assert there.text() == here.text()
    made = there.get_meta_info("answer")["tool_calls"]
    assert len(made) >= 1
    assert [one["arguments"] for one in made] == [
        one["arguments"] for one in here.get_meta_info("answer")["tool_calls"]
    ]


def test_a_tool_that_ends_the_program_ends_it_there(pair: Pair) -> None:
    with pytest.raises(ToolError, match="it is dark"):
        agent_of(fails, on_tool_error="raise").compile().run(backend=pair.there)
    wait_for(lambda: pair.runs.num_live == 0)


def test_errors_of_calls_are_those_of_this_process(pair: Pair) -> None:
    @ramet.function
    def too_long(s: Any) -> None:
        s += ramet.user("one") + ramet.assistant(ramet.gen("one", max_tokens=4, seed=1))
        s += ramet.user("there " * CONTEXT) + ramet.assistant(ramet.gen("two", max_tokens=4, seed=1))

    said = []
    for backend in (pair.here, pair.there):
        with pytest.raises(GenerationError) as raised:
            too_long.compile().run(backend=backend)
        said.append(str(raised.value).split(" (in ")[0])
    assert said[0] == said[1]
    assert "PromptTooLongError" in said[0]


def test_a_branch_that_fails_is_kept_where_errors_are(pair: Pair) -> None:
    def program(keeps: bool) -> ramet.Program:
        @ramet.function
        def forked(s: Any) -> None:
            s += ramet.user("one") + ramet.assistant_begin()
            forks = s.fork(2, return_errors=keeps)
            forks[0] += "there " * CONTEXT + ramet.gen("x", max_tokens=2)
            forks[1] += "there" + ramet.gen("x", max_tokens=2, seed=1)
            forks.join()

        return forked

    here, there = both(pair, program(True))
    assert isinstance(there["x"][0], GenerationError)
    assert there["x"][1] == here["x"][1]
    with pytest.raises(GenerationError, match="PromptTooLongError"):
        program(False).compile().run(backend=pair.there)


def test_leaving_a_stream_ends_the_program_there(pair: Pair) -> None:
    @ramet.function
    def endless(s: Any) -> None:
        s += ramet.user("one") + ramet.assistant(ramet.gen("one", max_tokens=1500, ignore_eos=True, seed=1))
        s += ramet.user("two") + ramet.assistant(ramet.gen("two", max_tokens=4, seed=1))

    before = pair.num_sent
    with endless.compile().stream(backend=pair.there) as state:
        wait_for(lambda: pair.num_sent == before + 1)
        next(iter(state.text_iter("one")))
    with pytest.raises(ProgramCancelledError):
        state["one"]
    wait_for(lambda: pair.runs.num_live == 0)


def test_many_programs_at_once(pair: Pair) -> None:
    expected = everything.run(backend=pair.here).text()
    texts: list[str] = []

    def run() -> None:
        texts.append(everything.compile().run(backend=pair.there).text())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert texts == [expected] * 8


def test_a_server_that_goes_is_told_as_an_error() -> None:
    @ramet.function
    def endless(s: Any) -> None:
        s += ramet.user("one") + ramet.assistant(ramet.gen("first", max_tokens=4, seed=1)) + ramet.user("two")
        branches = s.fork(80)
        for seed, branch in enumerate(branches):  # calls of one seed would be made once, and soon be over
            branch += ramet.assistant(ramet.gen("branch", max_tokens=1700, ignore_eos=True, seed=seed))
        branches.join()

    with opened(ServerConfig(drain_timeout=0.0)) as pair:
        state = endless.compile().stream(backend=pair.there)
        assert state["first"]
        pair.server.stop()
        with pytest.raises(BranchError):
            state["branch"]
        assert state.error() is not None
