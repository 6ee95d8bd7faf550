"""Refusals by name, before anything is sent."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from ramet.lang import (
    ProgramState,
    UnsupportedError,
    function,
    gen,
    image,
    select,
    user,
)
from ramet.lang.backends.base import Capabilities, Prompt
from ramet.lang.backends.scripted import Reply, ScriptedBackend


def run(body: Callable[[ProgramState], object], script: Any = "ok", **options: Any) -> ProgramState:
    return function(body).run(backend=ScriptedBackend(script), **options)


TEXT_ONLY = Capabilities(name="plain", roles=False, sampling_fields=frozenset({"temperature"}))


CHAT_ONLY = Capabilities(name="chatty", text_completion=False, grammars=frozenset({"json_schema"}))


@pytest.mark.parametrize(
    ("capabilities", "expression", "words"),
    [
        (TEXT_ONLY, user("x"), "plain has no chat template, so it knows no user role"),
        (TEXT_ONLY, "x" + gen("a", top_k=3), "plain does not honour top_k=3; leave it out .*'a'"),
        (
            TEXT_ONLY,
            gen("a", regex="x"),
            "plain cannot constrain an answer by regex; it enforces no constraints",
        ),
        (TEXT_ONLY, select("a", ["x"]), "plain cannot select"),
        (TEXT_ONLY, image(b"GIF89a"), "plain takes text only, no images"),
        (CHAT_ONLY, "x", "chatty speaks messages only, and text stands outside"),
        (CHAT_ONLY, gen("a"), "chatty speaks messages only, and a gen stands outside"),
        (CHAT_ONLY, user(gen("a", ebnf="root ::= x")), "by ebnf; it can by json_schema"),
    ],
)
def test_what_the_backend_cannot_do_is_refused_before_anything_is_sent(
    capabilities: Capabilities, expression: Any, words: str
) -> None:
    backend = ScriptedBackend(capabilities=capabilities)

    @function
    def program(s: ProgramState) -> None:
        s += gen("first") + expression if capabilities is TEXT_ONLY else expression

    with pytest.raises(UnsupportedError, match=words):
        program.run(backend=backend)
    assert not backend.calls


def test_run_options_that_the_backend_does_not_honour_are_refused_too() -> None:
    def body(s: ProgramState) -> None:
        s += gen("a")

    backend = ScriptedBackend(capabilities=TEXT_ONLY)
    function(body).run(backend=backend, temperature=0, max_tokens=3)
    with pytest.raises(UnsupportedError, match=r"min_p=0\.5"):
        function(body).run(backend=backend, min_p=0.5)


def test_an_adapter_is_for_one_call_and_refused_where_there_are_none() -> None:
    def add(a: int) -> int:
        """Adds."""
        return a

    @function
    def program(s: ProgramState) -> None:
        s += user("q")
        with s.assistant():
            s += gen("a", lora="sql") + gen("b") + gen("c", lora="math", tools=[add])

    calls = [("add", {"a": 1})]
    backend = ScriptedBackend({"a": "x", "b": "y", "c": [Reply(calls=calls), "z"]})
    program.run(backend=backend)
    assert [(call.tag.variable, call.lora) for call in backend.calls] == [
        *(("a", "sql"), ("b", None), ("c", "math"), ("c", "math")),
    ]
    without = ScriptedBackend(capabilities=Capabilities(name="the model m", tools=True))
    with pytest.raises(
        UnsupportedError, match=r"the model m applies no LoRA adapter .* lora is 'sql'"
    ) as caught:
        program.run(backend=without)
    assert (caught.value.program, caught.value.variable, without.calls) == ("program", "a", [])


def test_a_backend_that_boasts_of_adapters_is_noticed() -> None:
    class Boasting(ScriptedBackend):
        def prompt(self, *, cache_salt: str = "") -> Prompt:
            return cast("Prompt", Bare(super().prompt()))

    class Bare:
        """A prompt that takes no adapter."""

        def __init__(self, inner: Prompt) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == "use_adapter":
                raise AttributeError(name)
            return getattr(self._inner, name)

    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("a", lora="sql")

    with pytest.raises(UnsupportedError, match="says that it has LoRA adapters, and takes none"):
        program.run(backend=Boasting())
