"""Computing a program's beginning ahead of its runs."""

from collections.abc import Sequence

import pytest

from ramet.lang import ProgramState, ProgramStructureError, assistant, cache, function, gen, system, user
from ramet.lang.backends.base import Prompt
from ramet.lang.backends.scripted import ScriptedBackend


class Counting(ScriptedBackend):
    def count_tokens(self, text: str) -> int:
        return len(text.split())


@function
def program(s: ProgramState, question: str) -> None:
    s += system("Be brief and kind.") + user(f"Question: {question}") + assistant(gen("a"))


def test_the_start_up_to_the_first_open_argument_is_computed() -> None:
    backend = Counting("x")
    cached = program.cache(backend=backend)
    assert cached.text.endswith("Be brief and kind.<|im_end|>\n<|im_start|>user\nQuestion: ")
    assert cached.num_tokens == len(cached.text.split())
    assert backend.prefilled == [cached.text]
    assert backend.calls == []
    whole = cache(program, "why?", backend=backend)
    assert whole.text.endswith("Question: why?<|im_end|>\n<|im_start|>assistant\n")
    assert cache(program.bind(question="how?"), backend=backend).text.count("how?") == 1


def test_the_tokens_are_not_known_to_every_backend() -> None:
    assert program.cache(backend=ScriptedBackend()).num_tokens is None


def test_a_program_that_begins_with_nothing_fixed_asks_nothing() -> None:
    backend = ScriptedBackend("x")

    @function
    def bare(s: ProgramState, question: str) -> None:
        s += question + gen("a")

    assert bare.cache(backend=backend).text == ""
    assert backend.prefilled == []


def test_the_start_is_known_where_the_program_goes_on_in_a_way_that_is_not() -> None:
    backend = ScriptedBackend("x")

    @function
    def depends(s: ProgramState, question: str) -> None:
        s += system("Be brief and kind.")
        if question.endswith("?"):
            s += user(question) + assistant(gen("a"))

    assert depends.cache(backend=backend).text.endswith("Be brief and kind.<|im_end|>\n")
    assert len(backend.prefilled) == 1


def test_errors_are_raised() -> None:
    class Full(ScriptedBackend):
        async def prefill(self, prompts: Sequence[Prompt]) -> None:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        program.cache(backend=Full())
    with pytest.raises(ProgramStructureError, match="there is no backend"):
        program.cache()
