import pytest

from ramet.lang.backends.base import ToolCall
from ramet.lang.backends.openai_messages import chat_messages, prompt_text, without_bare_tool_messages
from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import UnsupportedError


def transcript(*turns: tuple[str, str], then: str | None = "") -> Transcript:
    """then: what the open assistant's turn says already; None: none is open."""
    made = Transcript()
    for role, text in turns:
        made.begin_role(role)
        made.append_text(text)
        made.end_role(role)
    if then is not None:
        made.begin_role("assistant")
        made.append_text(then)
    return made


def test_the_open_turn_is_asked_for_or_continued() -> None:
    user = {"role": "user", "content": "a"}
    assert chat_messages(transcript(("user", "a")), "s") == ([user], False)
    begun = {"role": "assistant", "content": "b"}
    assert chat_messages(transcript(("user", "a"), then="b"), "s") == ([user, begun], True)


def test_a_turn_that_calls_is_continued() -> None:
    made = transcript(("user", "a"))
    made.append_tool_calls([ToolCall(id="i", name="f", arguments="{}")])
    messages, continues = chat_messages(made, "s")
    assert continues
    assert messages[-1]["tool_calls"][0]["id"] == "i"
    made.append_tool_results([(ToolCall(id="i", name="f", arguments="{}"), "r")])
    messages, continues = chat_messages(made, "s")
    assert not continues
    assert messages[-1] == {"role": "tool", "content": "r", "tool_call_id": "i"}


def test_where_a_call_may_stand() -> None:
    open_user = Transcript()
    open_user.begin_role("user")
    with pytest.raises(UnsupportedError, match=r"s answers as the assistant only.*inside the user role"):
        chat_messages(open_user, "s")
    with pytest.raises(UnsupportedError, match="outside of any role"):
        chat_messages(transcript(("user", "a"), then=None), "s")
    stray = Transcript()
    stray.append_text("x")
    stray.begin_role("assistant")
    with pytest.raises(UnsupportedError, match="there is text outside of roles"):
        chat_messages(stray, "s")
    spaced = transcript(("user", "a"), then=None)
    spaced.append_text("\n")
    spaced.begin_role("assistant")
    assert chat_messages(spaced, "s") == ([{"role": "user", "content": "a"}], False)


def test_bare_tool_messages_are_the_users() -> None:
    messages = [{"role": "tool", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "i"}]
    assert [message["role"] for message in without_bare_tool_messages(messages)] == ["user", "tool"]


def test_text() -> None:
    made = Transcript()
    made.append_text("a")
    made.append_text("b")
    assert prompt_text(made, "s") == "ab"
    made.append_image("http://x")
    with pytest.raises(UnsupportedError, match="knows no roles, images or tools"):
        prompt_text(made, "s")
