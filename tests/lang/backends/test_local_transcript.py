"""The record of what a branch has said."""

from ramet.lang.backends.local_transcript import NOTHING_SAID, OUTSIDE, Generated, Opening, Turn

GENERATED = Generated((1, 2), "ab")


def test_text_joins_the_open_turn_or_stands_outside() -> None:
    said = NOTHING_SAID.with_text("x").with_text("").with_text("y").with_role("user").with_text("hi")
    assert said.turns == (Turn(OUTSIDE, ("x", "y")), Turn("user", ("hi",)))
    assert (said.is_open, said.role) == (True, "user")
    closed = said.without_role()
    assert (closed.is_open, closed.role) == (False, OUTSIDE)
    assert closed.with_text("z").turns[-1] == Turn(OUTSIDE, ("z",))
    assert said.turns[-1] == Turn("user", ("hi",)), "a transcript does not change"


def test_trailing_text_ends_at_what_was_generated_and_at_the_templates_seams() -> None:
    assert NOTHING_SAID.trailing_text() == ""
    said = NOTHING_SAID.with_text("a").with_text("b")
    assert said.trailing_text() == "ab"
    assert said.with_generated(GENERATED).trailing_text() == ""
    assert said.with_generated(GENERATED).with_text("c").trailing_text() == "c"
    opened = said.with_role("assistant")
    assert opened.trailing_text() == ""
    assert opened.with_text("c").trailing_text() == "c"
    assert opened.with_text("c").without_role().trailing_text() == ""


def test_content_and_opening() -> None:
    opening = Opening(" ", "")
    said = NOTHING_SAID.with_role("assistant").with_generated(GENERATED, opening).with_text("!")
    assert said.turns == (Turn("assistant", (GENERATED, "!"), opening),)
    assert said.turns[0].content == "ab!"
