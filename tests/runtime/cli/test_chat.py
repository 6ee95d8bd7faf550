"""``ramet chat`` with its turns on stdin."""

import io
import sys
from typing import Any

import pytest


@pytest.fixture
def say(ramet: Any, fake_engine: Any, monkeypatch: Any) -> Any:
    def talk(text: str, *arguments: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return ramet("chat", *arguments)

    return talk


def contents(prompt: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in prompt]


def test_turns_build_on_each_other(say: Any, fake_engine: Any) -> None:
    done = say("one\n\n  two \n", "--system", "brief")
    assert (done.status, done.out) == (0, "You said: one.\nYou said: two.\n")
    assert contents(fake_engine.prompts[1]) == [
        ("system", "brief"),
        ("user", "one"),
        ("assistant", "You said: one."),
        ("user", "two"),
    ]
    assert "(0 cached" in done.err.splitlines()[0]
    assert "(0 cached" not in done.err.splitlines()[1]


def test_reset_starts_over_and_exit_leaves(say: Any, fake_engine: Any) -> None:
    done = say("one\n/reset\ntwo\n/exit\nthree\n", "--system", "brief")
    assert done.status == 0
    assert [contents(prompt) for prompt in fake_engine.prompts] == [
        [("system", "brief"), ("user", "one")],
        [("system", "brief"), ("user", "two")],
    ]


def test_a_refused_turn_leaves_the_conversation_as_it_was(say: Any, fake_engine: Any) -> None:
    done = say("one\n" + "word " * 99 + "\ntwo\n")
    assert done.status == 0
    assert "context is 60 [tokens]; /reset starts over" in done.err
    assert [text for _, text in contents(fake_engine.prompts[-1])] == ["one", "You said: one.", "two"]


def test_ctrl_c_stops_the_answer_and_keeps_what_came(say: Any, fake_engine: Any) -> None:
    done = say("interrupt me\ntwo\n")
    assert done.status == 0
    assert fake_engine.streams[0].closed
    assert contents(fake_engine.prompts[1])[1] == ("assistant", "You said: interrupt me")


def test_no_input_is_no_error(say: Any, fake_engine: Any) -> None:
    done = say("")
    assert (done.status, done.out, fake_engine.prompts) == (0, "", [])
    assert fake_engine.closed
