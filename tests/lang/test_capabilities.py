"""Refusals by name, before anything is sent."""

from collections.abc import Callable
from typing import Any

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
from ramet.lang.backends.base import Capabilities
from ramet.lang.backends.scripted import ScriptedBackend


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
