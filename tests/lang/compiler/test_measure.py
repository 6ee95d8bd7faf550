"""Counting the tokens of a program's prompts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from ramet.lang import ProgramState, assistant, function, gen, select, system, user
from ramet.lang.backends.base import Prompt
from ramet.lang.backends.scripted import ScriptedAnswers, ScriptedBackend
from ramet.lang.backends.transcript import Transcript, TranscriptPrompt
from ramet.lang.compiler.graph import Answer, Argument
from ramet.lang.compiler.measure import NUM_PROVEN, UNBOUNDED_ANSWER, Measure, measure
from ramet.lang.compiler.prompt_trie import PromptTrie
from ramet.lang.compiler.renderings import Renderings, Seam
from ramet.lang.operations import AppendText
from tests.lang.test_fork_trees import Step, program, trees


class Counting(ScriptedBackend):
    """A token is a character."""

    def count_tokens(self, text: str) -> int:
        return len(text)


def measured(body: object, backend: ScriptedBackend | None = None) -> Measure:
    program = function(body)  # type: ignore[call-overload]
    return measure(program.trace(max_tokens=None).graph, backend or Counting())


def test_each_token_is_computed_once() -> None:
    def body(s: ProgramState) -> None:
        s += "abc" + gen("x", max_tokens=10)
        branches = s.fork(2)
        branches += lambda i: f"de{i}" + gen("y", max_tokens=5)
        branches.join()
        s += "fg" + "".join(s["y"]) + gen("z")

    found = measured(body)
    assert found.prompts == (3, 3 + 10 + 3, 3 + 10 + 3, 3 + 10 + 2 + 5 + 5)
    assert found.answers == (10, 5, 5, UNBOUNDED_ANSWER)
    # The answers of x are there already; those of y are read, and have to be computed in their new place.
    assert found.unique == 3 + 3 + 1 + 2 + 5 + 5
    assert found.total == 3 + 16 + 16 + 25
    assert found.shared_start == 3
    assert not found.is_estimate


def test_the_template_counts_too() -> None:
    def body(s: ProgramState) -> None:
        s += user("hi") + assistant(select("x", ["yes", "maybe"]))

    found = measured(body)
    assert found.prompts == (len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),)
    assert found.answers == (5,)


def test_without_a_tokenizer_tokens_are_estimated() -> None:
    def body(s: ProgramState) -> None:
        s += "x" * 41 + gen("x")

    found = measured(body, ScriptedBackend())
    assert found.prompts == (11,)
    assert found.is_estimate


def test_a_program_without_calls_has_nothing() -> None:
    found = measured(lambda s: None)
    assert (found.total, found.unique, found.shared_start) == (0, 0, 0)


@given(trees)
@hypothesis_settings(max_examples=60)
def test_unique_tokens_are_those_of_the_prompts_trie(steps: list[Step]) -> None:
    graph = program.trace(tuple(steps)).graph
    found = measure(graph, Counting())
    assert sum(found.own) == found.unique <= found.total
    known: set[str] = set()
    computed = 0
    for call in graph.calls:
        text = ""
        for part in call.prompt:
            if isinstance(part, Answer):
                text += f"\x00{part.call}{part.carried}"
                computed += 0 if text in known or part.carried else found.answers[part.call]
                known.add(text)
            elif isinstance(part, AppendText):
                for character in part.text:
                    text += character
                    computed += text not in known
                    known.add(text)
    assert computed == found.unique
    sizes = [
        sum(len(part.text) if isinstance(part, AppendText) else found.answers[part.call] for part in parts)
        for parts in ([p for p in call.prompt if isinstance(p, AppendText | Answer)] for call in graph.calls)
    ]
    assert list(found.prompts) == sizes


class Rendering(Counting):
    """Counts the prompts that are made, and the parts of those that are shown."""

    def __init__(self, template: "type[Answers] | None" = None) -> None:
        super().__init__()
        self._template = template or Answers
        self.num_prompts = 0
        self.num_shown = 0

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        self.num_prompts += 1
        return TranscriptPrompt(self._template(self), Transcript())


class Answers(ScriptedAnswers):
    def __init__(self, rendering: Rendering) -> None:
        super().__init__(ScriptedBackend())
        self.rendering = rendering

    def text_of(self, transcript: Transcript) -> str:
        self.rendering.num_shown += len(transcript.pieces)
        return super().text_of(transcript)


class Forgetting(Answers):
    """Shows no assistant's turn."""

    def text_of(self, transcript: Transcript) -> str:
        first, *turns = transcript.text().split("<|im_start|>assistant\n")
        return first + "".join(turn.partition("<|im_end|>\n")[2] for turn in turns)


class Numbering(Answers):
    """Numbers the turns, so that each one's text depends on all before it."""

    def text_of(self, transcript: Transcript) -> str:
        first, *turns = super().text_of(transcript).split("<|im_start|>user\n")
        return first + "".join(f"<|im_start|>user\n{number}:{turn}" for number, turn in enumerate(turns))


def conversation(s: ProgramState, count: int) -> None:
    for index in range(count):
        s += user("hi") + assistant(gen(f"answer {index}", max_tokens=5))


def test_a_long_conversation_is_rendered_once() -> None:
    turn = len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n") + 5 + len("<|im_end|>\n")
    for count in (20, 200):
        backend = Rendering()
        found = measure(function(conversation).trace(count).graph, backend)
        assert backend.num_prompts == 1 + NUM_PROVEN
        first = found.prompts[0]
        assert found.prompts == tuple(first + index * turn for index in range(count))
        assert found.own == (first, *[turn - 5] * (count - 1))
        assert found.shared_start == first


def test_a_template_that_changes_earlier_turns_is_asked_for_each_call() -> None:
    graph = function(conversation).trace(6).graph
    backend = Rendering(Forgetting)
    found = measure(graph, backend)
    assert backend.num_prompts >= 6
    said = len("<|im_start|>user\nhi<|im_end|>\n")
    assert found.prompts == tuple(said * number for number in range(1, 7))
    assert found.own == (said,) * 6


def test_tools_that_are_told_later_are_part_of_the_later_prompts_alone() -> None:
    def look(place: str) -> str:
        """Looks."""
        return place

    def body(s: ProgramState) -> None:
        s += user("a") + assistant(gen("x", max_tokens=5)) + user("b")
        s += assistant(gen("y", max_tokens=5, tools=[look])) + user("c") + assistant(gen("z", max_tokens=5))

    backend = Rendering()
    found = measure(function(body).trace().graph, backend)
    # One path for what is said without tools, and one with them, of which the first call is proven.
    assert backend.num_prompts == 3
    assert found.prompts[0] < found.prompts[1] < found.prompts[2]


def forks_in_texts(s: ProgramState, count: int) -> None:
    for index in range(count):
        branches = s.fork(2)
        branches += lambda i: f"ask {i}" + gen("x", max_tokens=5)
        branches.join()
        s += f"then {index}. "


def forks_in_roles(s: ProgramState, count: int) -> None:
    for index in range(count):
        branches = s.fork(2)
        branches += lambda i: user(f"ask {i}") + assistant(gen("x", max_tokens=5))
        branches.join()
        s += user(f"and {index}?") + assistant(f"so {index}")


def forks_that_are_appended(s: ProgramState, count: int) -> None:
    for index in range(count):
        branches = s.fork(2)
        for branch in branches:
            branch += user("ask") + assistant(gen(f"x{index}", max_tokens=5))
        branches.join("concate_and_append")


def forks_with_answers_between(s: ProgramState, count: int) -> None:
    s += system("be brief")
    for index in range(count):
        branches = s.fork(2)
        for branch in branches:
            answer = gen(f"x{index}", max_tokens=5) + " or " + gen("z", max_tokens=5)
            branch += user("ask") + assistant(answer)
        branches.join()
        s += user("and?" + "".join(s[f"x{index}"])) + assistant(gen("y", max_tokens=5))


FORKS = [forks_in_texts, forks_in_roles, forks_that_are_appended, forks_with_answers_between]


@pytest.mark.parametrize("body", FORKS)
def test_the_work_for_many_forks_in_a_row_grows_with_their_number(body: Callable[..., None]) -> None:
    shown = []
    for count in (50, 100, 200):
        backend = Rendering()
        measure(function(body).trace(count).graph, backend)
        shown.append(backend.num_shown)
    # Whole, four times as many would have sixteen times the parts.
    assert shown[2] - shown[1] < 2.5 * (shown[1] - shown[0])
    assert shown[2] < 200 * 2 * 120


@pytest.mark.parametrize("body", FORKS)
@pytest.mark.parametrize("template", [Answers, Forgetting, Numbering])
def test_windows_change_no_number(body: Callable[..., None], template: type[Answers]) -> None:
    graph = function(body).trace(60).graph
    found = measure(graph, Rendering(template))
    renderings = Renderings(graph, Rendering(template))
    trie = PromptTrie()
    unique = 0
    for call in graph.calls:
        pieces = [piece for piece in renderings.whole(call.last, ()) if not isinstance(piece, Seam)]
        assert found.prompts[call.index] == sum(tokens(piece) for piece in pieces)
        node = trie.root
        for piece in pieces:
            node, new = trie.extend(node, piece)
            unique += 0 if new is None or (isinstance(new, Answer) and new.carried) else tokens(new)
        node.is_end = True
    assert found.unique == sum(found.own) == unique
    assert found.shared_start == sum(tokens(piece) for piece in trie.common_start())


def tokens(piece: str | Answer | Argument) -> int:
    return len(piece) if isinstance(piece, str) else 5


def test_a_template_that_counts_turns_is_asked_for_each_prompt() -> None:
    graph = function(forks_with_answers_between).trace(60).graph
    backend = Rendering(Numbering)
    measure(graph, backend)
    assert backend.num_shown > 60 * 60 * 2 * 5
