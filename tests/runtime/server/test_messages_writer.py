"""Blocks of thinking, text and tools, folded back into the message."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason, RequestStats, SamplingParams
from ramet.runtime.protocol.reasoning import ReasoningFormat
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.messages_writer import MessagesWriter
from ramet.runtime.server.tools.enforcement import Enforcement
from ramet.runtime.server.tools.formats import HERMES
from ramet.runtime.tokenizer import ByteTokenizer

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TEXT = f"<think>why</think>So:{CALL}{CALL}"


def write(pieces: list[str], reason: FinishReason = FinishReason.STOP) -> list[dict[str, Any]]:
    prompt = ChatPrompt(
        [1], None, frozenset(("f",)), Enforcement(HERMES), ReasoningFormat("<think>", "</think>")
    )
    answers: Any = SimpleNamespace(prompt_token_ids=[[1]], job=SimpleNamespace(params=SamplingParams()))
    head = AnswerHead(id="i", created=1, model="m")
    chat = ChatWriter(answers, head, prompt, ByteTokenizer(), include_usage=False)
    writer = MessagesWriter(chat, head, 1)
    increments = [Increment(request_id="r", text=piece) for piece in pieces]
    increments.append(Increment(request_id="r", finish_reason=reason, stats=RequestStats(num_output_tokens=4)))
    events = [event for one in increments for event in writer.push(one)] + writer.end()
    return [*events, writer.fold(events)]


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=10))
def test_every_way_to_cut_gives_the_same_blocks(cuts: list[int]) -> None:
    cuts = sorted(cuts)
    *events, message = write([TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)])
    thinking, text, first, second = message["content"]
    assert (thinking["thinking"], text["text"]) == ("why", "So:")
    assert first["input"] == second["input"] == {"a": 1}
    assert first["id"] != second["id"]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("tool_use", 4)
    opened = [event["index"] for event in events if event["type"] == "content_block_start"]
    closed = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert opened == closed == [0, 1, 2, 3]


def test_a_cut_call_has_no_input() -> None:
    *_, message = write([TEXT[: TEXT.index("1}}")]], FinishReason.LENGTH)
    assert message["content"][-1]["input"] == {}
    assert message["stop_reason"] == "max_tokens"
