"""Tools in the words of a prompt."""

from ramet.runtime.server.tools.definitions import tool_choice
from ramet.runtime.server.tools.formats import HERMES, JSON, LLAMA3
from ramet.runtime.server.tools.prompting import describe, with_calls_as_content, with_description
from ramet.runtime.tokenizer.chat_messages import normalise_messages

TOOLS = tool_choice(
    [{"type": "function", "function": {"name": "f", "description": "é"}}], None, parallel=None
).tools


def test_a_description_says_what_there_is_and_how_to_call_it() -> None:
    text = describe(TOOLS, JSON)
    assert '{"name": "f", "description": "é"}' in text
    assert '{"name": "...", "arguments": {...}}' in text
    assert '"parameters": {...}' in describe(TOOLS, LLAMA3)
    assert "<tool_call>{" in describe(TOOLS, HERMES)


def test_it_goes_into_the_system_message() -> None:
    user = {"role": "user", "content": "u"}
    assert with_description([user], "T") == [{"role": "system", "content": "T"}, user]
    assert with_description([{"role": "system", "content": "S"}, user], "T")[0]["content"] == "S\n\nT"
    assert with_description([{"role": "developer", "content": "D"}], "T") == [
        {"role": "developer", "content": "D\n\nT"}
    ]


def test_earlier_calls_are_written_as_the_model_writes_them() -> None:
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "")]
    messages = normalise_messages(
        [{"role": "user", "content": "u"}, {"role": "assistant", "content": "C", "tool_calls": calls}]
    )
    (user, written) = with_calls_as_content(messages, JSON)
    assert user == {"role": "user", "content": "u"}
    assert "tool_calls" not in written
    assert written["content"] == 'C\n[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {}}]'
    (_, tagged) = with_calls_as_content(messages, HERMES)
    assert tagged["content"].count("<tool_call>") == 2
