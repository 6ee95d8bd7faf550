"""Compiled programs on a real engine: the tokens of interpreted ones, from fewer requests."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from ramet.lang import ProgramState, assistant, function, gen, select, system, user
from ramet.lang.backends.local import LocalBackend
from tests.lang.backends.random_engine import RandomEngine, open_random
from tests.lang.backends.saying_engine import SayingEngine
from tests.lang.backends.small_tokenizer import CHATML, small_tokenizer
from tests.lang.test_fork_trees import NAMES, Step, program, trees


@function
def begun(s: ProgramState, steps: tuple[Step, ...]) -> None:
    s += "begin"
    program(s, steps)


@pytest.fixture
def engine() -> Iterator[RandomEngine]:
    opened = open_random(small_tokenizer())
    with opened.face:
        yield opened
        opened.face.check_integrity()


@given(trees)
@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_program_gets_the_same_tokens(engine: RandomEngine, steps: list[Step]) -> None:
    backend = LocalBackend(engine.face)
    results = []
    for variant in (begun, begun.compile(), begun.interpreted()):
        state = variant.run(tuple(steps), backend=backend, temperature=0, max_tokens=3)
        known = [name for name in NAMES if name in state]
        metas = [_token_ids(state.get_meta_info(name)) for name in known]
        results.append((state.text(), [state[name] for name in known], metas))
    assert results[0] == results[1] == results[2]


def _token_ids(meta: object) -> object:
    if isinstance(meta, list):
        return [_token_ids(one) for one in meta]
    return meta.get("token_ids") if isinstance(meta, dict) else None


def test_equal_calls_are_one_request(engine: RandomEngine) -> None:
    @function
    def voted(s: ProgramState) -> None:
        s += system("Be brief.") + user("q")
        branches = s.fork(4)
        branches += assistant(gen("a", max_tokens=4)) + user("sure?") + assistant(select("b", ["yes", "no"]))
        branches.join()

    backend = LocalBackend(engine.face)
    compiled = voted.run(backend=backend, temperature=0)
    first = len(engine.executor.prompts)
    plain = voted.interpreted().run(backend=backend, temperature=0)
    assert compiled["a"] == plain["a"]
    assert compiled["b"] == plain["b"]
    assert [meta["scores"] for meta in compiled.get_meta_info("b")] == [
        meta["scores"] for meta in plain.get_meta_info("b")
    ]
    assert len(engine.executor.prompts) - first == 4 * first


def test_the_start_of_a_batch_and_of_a_program_is_cached(engine: RandomEngine) -> None:
    @function
    def ask(s: ProgramState, question: str) -> None:
        s += (
            system("Answer in a word. " * 20)
            + user("Question: " + question)
            + assistant(gen("a", max_tokens=2))
        )

    backend = LocalBackend(engine.face)
    states = ask.compile().run_batch([(f"{i} of what?",) for i in range(6)], backend=backend, temperature=0)
    shared = len("Answer in a word. " * 20)
    # The first to come goes alone where no other one comes soon.
    cached = sorted(state.get_meta_info("a")["cached_tokens"] for state in states)[1:]
    assert cached[0] > shared / 10
    assert len(set(cached)) == 1
    plain = ask.interpreted().run_batch([(f"{i} of what?",) for i in range(6)], backend=backend, temperature=0)
    assert [state["a"] for state in plain] == [state["a"] for state in states]

    backend = LocalBackend(engine.face)
    engine.face.flush_cache()
    prefix = ask.cache(backend=backend)
    assert prefix.text.rstrip().endswith("Question:")
    assert prefix.num_tokens is not None
    meta = ask.run("why", backend=backend, temperature=0).get_meta_info("a")
    assert meta["cached_tokens"] >= prefix.num_tokens - 4


def test_the_start_of_a_program_with_tools_is_computed_with_them() -> None:
    def look_up(word: str) -> str:
        """What a word means, in a dictionary of many words."""
        return word

    @function
    def ask(s: ProgramState, question: str) -> None:
        s += system("Answer in a word.") + user("Question: " + question)
        s += assistant(gen("a", tools=[look_up])) + user("Sure?") + assistant(gen("b"))

    engine = SayingEngine(small_tokenizer(CHATML), ['{"answer": "Because."}', "Yes."])
    backend = LocalBackend(engine)
    prefix = ask.cache(backend=backend)
    explanation = ask.explain("why?", backend=backend)
    ask.run("why?", backend=backend)
    assert "look_up" in prefix.text
    assert engine.prompts[0].startswith(prefix.text)
    assert explanation.measure.prompts[0] == pytest.approx(len(engine.prompt_ids[0]), abs=2)
    assert explanation.measure.prompts[1] >= len(engine.prompt_ids[1])


def test_what_is_explained_is_what_the_engine_computes(engine: RandomEngine) -> None:
    @function
    def expand(s: ProgramState) -> None:
        s += "A long beginning of a text. " * 10
        branches = s.fork(3)
        branches += lambda i: f"Part {i}:" + gen("a", max_tokens=5)
        branches.join()

    backend = LocalBackend(engine.face, token_healing=False)
    explanation = expand.explain(backend=backend, temperature=0)
    assert not explanation.measure.is_estimate
    state = expand.run(backend=backend, temperature=0)
    metas = state.get_meta_info("a")
    assert sum(meta["prompt_tokens"] for meta in metas) == pytest.approx(explanation.prompt_tokens, abs=6)
    computed = sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    assert computed == pytest.approx(explanation.unique_tokens, abs=9)
