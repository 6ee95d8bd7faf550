"""Items of reasoning, text and calls, whole in the last event."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason, RequestStats, SamplingParams
from ramet.runtime.protocol.reasoning import ReasoningFormat
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.responses_writer import ResponsesWriter
from ramet.runtime.server.tools.enforcement import Enforcement
from ramet.runtime.server.tools.formats import HERMES
from ramet.runtime.tokenizer import ByteTokenizer

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TEXT = f"<think>why</think>So:{CALL}{CALL}"


def write(pieces: list[str]) -> list[dict[str, Any]]:
    prompt = ChatPrompt(
        [1], None, frozenset(("f",)), Enforcement(HERMES), ReasoningFormat("<think>", "</think>")
    )
    answers: Any = SimpleNamespace(prompt_token_ids=[[1]], job=SimpleNamespace(params=SamplingParams()))
    head = AnswerHead(id="i", created=1, model="m")
    chat = ChatWriter(answers, head, prompt, ByteTokenizer(), include_usage=False)
    writer = ResponsesWriter(chat, head, {"temperature": 1.0})
    stats = RequestStats(num_output_tokens=4)
    increments = [Increment(request_id="r", text=piece, token_ids=[1]) for piece in pieces]
    increments.append(Increment(request_id="r", finish_reason=FinishReason.STOP, stats=stats))
    return [event for one in increments for event in writer.push(one)] + writer.end()


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=10))
def test_every_way_to_cut_gives_the_same_items(cuts: list[int]) -> None:
    cuts = sorted(cuts)
    events = write([TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)])
    response = events[-1]["response"]
    reasoning, message, first, second = response["output"]
    assert reasoning["content"][0]["text"] == "why"
    assert message["content"][0]["text"] == "So:"
    assert (first["arguments"], second["arguments"]) == ('{"a": 1}', '{"a": 1}')
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert added == [0, 1, 2, 3]
    assert done == response["output"]
    assert response["usage"]["output_tokens"] == 4
