"""The examples that are programs run with the real model, and share what they are there to share."""

from typing import Any

import pytest

from ramet.lang.backends.scripted import ScriptedBackend
from tests.examples.test_examples import load


def cached_share(engine: Any) -> float:
    stats = engine.stats()
    return float(stats.cached_tokens / stats.prompt_tokens)


@pytest.fixture
def engine(engine: Any) -> Any:
    """Only what the example itself computes counts."""
    return Counting(engine)


class Counting:
    """An engine whose counters begin at 0."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._before = engine.stats()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def stats(self) -> Any:
        now, before = self._engine.stats(), self._before
        names = ("prompt_tokens", "cached_tokens")
        return type("Counters", (), {name: getattr(now, name) - getattr(before, name) for name in names})


def test_few_shot_qa(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("few_shot_qa")
    states = module.main(engine)
    assert all("\n" not in state["answer"] for state in states)
    # The examples are computed once, all but their last page.
    assert cached_share(engine) > 0.7
    printed = capsys.readouterr().out
    for question, state in zip(module.QUESTIONS, states, strict=True):
        assert f"{question}{state['answer']}\n" in printed


@pytest.mark.slow
def test_math_word_problems(engine: Any) -> None:
    module = load("math_word_problems")
    module.main(engine)
    assert cached_share(engine) > 0.7
    # How many a model of this size gets right is luck; that they are counted is not.
    said = {"Tom": " 8", "box": " 24 eggs", "Mia": " six", "train": "$12"}
    scripted = ScriptedBackend(
        {
            "reasoning": "So it is.",
            "number": lambda prompt: next(text for name, text in said.items() if name in prompt),
        }
    )
    assert module.main(scripted) == 2
    assert module.number_in(" $1,234.5 or so") == "1234.5"
    assert module.number_in("none") is None


@pytest.mark.slow
def test_tree_of_thought(engine: Any) -> None:
    module = load("tree_of_thought")
    state = module.main(engine)
    assert state.ret_value == state["solution"] != ""
    assert cached_share(engine) > 0.6


@pytest.mark.slow
def test_skeleton_of_thought(engine: Any) -> None:
    texts = load("skeleton_of_thought").main(engine)
    assert len(texts) == 3
    assert all(texts)


def test_react(engine: Any) -> None:
    module = load("react")
    for state in module.main(engine):
        said = state.text().split(module.EXAMPLE)[1]
        found = [
            text for name, text in module.FACTS.items() if f"Search[{name}]\nObservation 1: {text}\n" in said
        ]
        assert len(found) == 1, "the tool was asked, and its answer is in the prompt"
        assert said.endswith(f"Finish[{state['answer']}]")


@pytest.mark.slow
def test_judge(engine: Any) -> None:
    module = load("judge")
    state = module.main(engine)
    assert len(state["grade"]) == len(module.DIMENSIONS)
    assert {*state["grade"], state["overall"]} <= set(module.GRADES)
    assert cached_share(engine) > 0.7


def test_json_extraction(engine: Any) -> None:
    if "json_schema" not in engine.info.grammars:
        pytest.skip("no grammar backend for JSON schemas is installed")
    module = load("json_extraction")
    hotels = module.main(engine)
    assert len(hotels) == len(module.TEXTS)
    for hotel in hotels:
        assert isinstance(hotel, module.Hotel)
        assert hotel.opinion in ("good", "mixed", "bad")
        assert isinstance(hotel.rooms, int)


def test_chat_turns(engine: Any) -> None:
    module = load("chat_turns")
    state = module.main(engine)
    cached = [state.get_meta_info(f"answer{number}")["cached_tokens"] for number in range(len(module.TURNS))]
    assert cached == sorted(set(cached)), "each turn finds more of the history in the cache"


def test_expert_answers(engine: Any) -> None:
    module = load("expert_answers")
    state = module.main(engine)
    assert len(state["opinion"]) == len(module.EXPERTS)
    assert all(opinion.strip() in state.text() for opinion in state["opinion"])


@pytest.mark.slow
def test_agent_memory(engine: Any) -> None:
    module = load("agent_memory")
    states = module.main(engine)
    assert [state.ret_value for state in states] == [state["action"] for state in states]
    # A select reads its prompt once, however many options it has.
    assert cached_share(engine) > 0.6


def test_tool_calls(engine: Any) -> None:
    if "json_schema" not in engine.info.grammars:
        pytest.skip("no grammar backend for JSON schemas is installed")
    module = load("tool_calls")
    for state in module.main(engine):
        calls = state.get_meta_info("answer")["tool_calls"]
        assert 1 <= len(calls) <= 2
        assert {call["name"] for call in calls} <= {"price", "reserve"}
        # What does not fit the hints was not even generated, so nothing but the shop itself can say no.
        assert all(call["error"] is None or "there are only" in str(call["error"]) for call in calls)
