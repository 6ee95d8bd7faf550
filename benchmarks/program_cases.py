"""The programs of the language's benchmark: those of examples/, after the set of the SGLang paper (arXiv
2312.07104), each with what it is run on.

Problems and conversations come from the shared folder where it is there, else from the examples' own few.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import SharedDataMissingError, read_gsm8k, read_mt_bench
from examples.agent_memory import OBSERVATIONS, PEOPLE, live_a_day
from examples.chat_turns import TURNS, converse
from examples.expert_answers import QUESTION, ask_experts
from examples.few_shot_qa import QUESTIONS, answer_question
from examples.json_extraction import TEXTS, extract
from examples.judge import ESSAY, judge
from examples.math_word_problems import PROBLEMS, solve
from examples.react import QUESTIONS as LOOKUPS
from examples.react import react
from examples.skeleton_of_thought import write_by_skeleton
from examples.tree_of_thought import solve_by_tree
from ramet import Program

COUNTRIES = ("France", "Spain", "Poland", "Japan", "Egypt", "Peru", "Kenya", "Norway", "Cuba", "Nepal")
WISHES = (
    "Should children learn to cook at school?",
    "Is it right to keep animals in a zoo?",
    "Should everybody work four days a week?",
)


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """A program and the arguments of its runs. ``grammars``: what the engine has to enforce for it."""

    name: str
    title: str
    program: Program
    items: tuple[Mapping[str, Any], ...]
    grammars: frozenset[str] = frozenset()


Make = Callable[[float, random.Random], ProgramCase]


def make_case(name: str, scale: float, seed: int) -> ProgramCase:
    """``scale``: 1 for a figure, less for a look. Deterministic in (name, scale, seed). Raises KeyError."""
    return _CASES[name](scale, random.Random(f"{name} {seed}"))


def case_names() -> list[str]:
    return list(_CASES)


def _few_shot_qa(scale: float, source: random.Random) -> ProgramCase:
    questions = [*QUESTIONS, *(f"What is the capital of {country}?" for country in COUNTRIES)]
    items = [{"question": question} for question in _some(questions, scale, source)]
    return ProgramCase("few_shot_qa", "few-shot question answering", answer_question, tuple(items))


def _gsm8k(scale: float, source: random.Random) -> ProgramCase:
    try:
        problems = [problem for problem, _ in read_gsm8k(12)]
    except SharedDataMissingError:
        problems = [problem for problem, _ in PROBLEMS]
    items = [{"problem": problem} for problem in _some(problems, scale, source)]
    return ProgramCase("gsm8k", "GSM8K by chain of thought", solve, tuple(items))


def _tree_of_thought(scale: float, source: random.Random) -> ProgramCase:
    problems = _some([problem for problem, _ in PROBLEMS], scale, source)
    items = [{"problem": problem, "branches": 3, "depth": 2, "kept": 1} for problem in problems]
    return ProgramCase("tree_of_thought", "tree of thought, 3 branches, 2 levels", solve_by_tree, tuple(items))


def _skeleton_of_thought(scale: float, source: random.Random) -> ProgramCase:
    items = [{"question": question, "num_points": 3} for question in _some([QUESTION, *WISHES], scale, source)]
    return ProgramCase("skeleton_of_thought", "skeleton of thought, 3 points", write_by_skeleton, tuple(items))


def _react(scale: float, source: random.Random) -> ProgramCase:
    questions = [*LOOKUPS, "What do polyps live with?", "How long does honey keep?"]
    items = [{"question": question, "max_rounds": 3} for question in _some(questions, scale, source)]
    return ProgramCase("react", "ReAct with a local tool", react, tuple(items))


def _judge(scale: float, source: random.Random) -> ProgramCase:
    sentences = ESSAY.split(". ")
    essays = [". ".join(source.sample(sentences, len(sentences))) for _ in range(4)]
    items = [{"essay": essay} for essay in _some(essays, scale, source)]
    return ProgramCase("judge", "judge of essays, 3 dimensions", judge, tuple(items))


def _json_extraction(scale: float, source: random.Random) -> ProgramCase:
    items = [{"text": text} for text in _some(TEXTS, scale, source)]
    needs = frozenset({"json_schema"})
    return ProgramCase("json_extraction", "JSON extraction by schema", extract, tuple(items), needs)


def _chat_short(scale: float, source: random.Random) -> ProgramCase:
    return _chat("chat_short", "chat, 4 turns, 8 tokens out", 8, scale, source)


def _chat_long(scale: float, source: random.Random) -> ProgramCase:
    return _chat("chat_long", "chat, 4 turns, 48 tokens out", 48, scale, source)


def _expert_answers(scale: float, source: random.Random) -> ProgramCase:
    items = [{"question": question} for question in _some(WISHES, scale, source)]
    return ProgramCase("expert_answers", "4 experts and a summary", ask_experts, tuple(items))


def _agent_memory(scale: float, source: random.Random) -> ProgramCase:
    names = _some(list(PEOPLE), scale, source)
    items = [{"name": name, "observations": OBSERVATIONS, "remembered": 2} for name in names]
    return ProgramCase("agent_memory", "generative agents with a memory", live_a_day, tuple(items))


_CASES: dict[str, Make] = {
    "few_shot_qa": _few_shot_qa,
    "gsm8k": _gsm8k,
    "tree_of_thought": _tree_of_thought,
    "skeleton_of_thought": _skeleton_of_thought,
    "react": _react,
    "judge": _judge,
    "json_extraction": _json_extraction,
    "chat_short": _chat_short,
    "chat_long": _chat_long,
    "expert_answers": _expert_answers,
    "agent_memory": _agent_memory,
}


def _chat(name: str, title: str, max_tokens: int, scale: float, source: random.Random) -> ProgramCase:
    try:
        spoken = [turn for turns in read_mt_bench(40) for turn in turns if len(turn) < 300]
    except SharedDataMissingError:
        spoken = list(TURNS)
    count = max(2, round(6 * scale))
    items = [
        {"turns": tuple(source.choice(spoken) for _ in range(4)), "max_tokens": max_tokens}
        for _ in range(count)
    ]
    return ProgramCase(name, title, converse, tuple(items))


def _some(values: Sequence[str], scale: float, source: random.Random) -> list[str]:
    """A share of them in random order, two at least where there are two."""
    count = max(min(2, len(values)), round(len(values) * scale))
    return source.sample(list(values), count)
