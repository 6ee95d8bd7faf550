"""/v1/responses/compact and /v1/responses/input_tokens: a conversation made short, and how long it is."""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import InvalidRequestError, RametError
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_chunks import ChatChunk
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.compaction import REQUEST, packed, summary_tokens
from ramet.runtime.server.errors import openai_error
from ramet.runtime.server.gateway import Job
from ramet.runtime.server.responding import answer
from ramet.runtime.server.responses_fields import ResponsesFields, input_items, user_items, without_refused
from ramet.runtime.server.responses_route import RENAMED, following, prompt_of
from ramet.runtime.server.responses_writer import responses_usage
from ramet.runtime.server.shared_fields import RoutingFields, SamplingFields, sampling_params
from ramet.runtime.server.state import json_response, state_of, tenant_of


class CompactFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conversation is ``input``, behind that of ``previous_response_id`` where there is one."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    """A system message for the summary."""
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    """Changes nothing: every prefix is cached."""


class CountFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a response's request is read by the model."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None


COMPACT_RECORDS = (CompactFields, RoutingFields)
COUNT_RECORDS = (CountFields,)
"""What the bodies' fields are spread over."""


async def compact(request: Request) -> Response:
    """POST /v1/responses/compact: what the user said, and the model's summary of the whole."""
    state = state_of(request)
    body = without_refused(await state.read(request), stores=state.response_store is not None)
    own_part, routing_part = split(body, *COMPACT_RECORDS)
    asked, routing = convert(own_part, CompactFields), convert(routing_part, RoutingFields)
    state.require_model(asked.model)
    fields = await _whole(request, _response(asked))
    turns = input_items(fields.input)
    try:
        if not turns:
            raise InvalidRequestError("input is empty; send the conversation", field="input")
        prompt = await prompt_of(state, msgspec.structs.replace(fields, input=[*turns, *input_items(REQUEST)]))
        kept = user_items(turns)
        params = sampling_params(
            SamplingFields(temperature=0.0),
            max_tokens=summary_tokens(state.engine.info.context_length),
            grammar=prompt.grammar,
        )
        job = Job.routed(params, routing, tenant_of(request), prompts=prompt.token_ids)
    except RametError as error:
        raise openai_error(error, RENAMED) from error
    head = AnswerHead(id=f"resp_{secrets.token_hex(16)}", created=int(time.time()), model=state.model)
    return await answer(
        request,
        state.gateway,
        job,
        lambda answers: CompactionWriter(
            ChatWriter(answers, head, prompt, state.engine.tokenizer, include_usage=False), head, kept
        ),
        stream=False,
        translate=lambda error: openai_error(error, RENAMED),
    )


async def count_input(request: Request) -> Response:
    """POST /v1/responses/input_tokens"""
    state = state_of(request)
    body = without_refused(await state.read(request), stores=state.response_store is not None)
    asked = convert(split(body, CountFields)[0], CountFields)
    state.check_model(asked.model)
    fields = await _whole(request, _response(asked))
    try:
        prompt = await prompt_of(state, fields)
    except RametError as error:
        raise openai_error(error, RENAMED) from error
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


class CompactionWriter:
    """The summary as a compaction item, behind what is kept of the conversation as it was."""

    def __init__(self, chat: ChatWriter, head: AnswerHead, kept: Sequence[dict[str, Any]]) -> None:
        self._chat = chat
        self._head = head
        self._kept = kept

    def push(self, increment: Increment) -> list[ChatChunk]:
        return self._chat.push(increment)

    def end(self) -> list[ChatChunk]:
        return self._chat.end()

    def encode(self, chunk: ChatChunk) -> bytes:
        return self._chat.encode(chunk)

    def fold(self, chunks: Sequence[ChatChunk]) -> dict[str, Any]:
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        summary = "".join(one.content for one in deltas if isinstance(one.content, str)).strip()
        item = {
            "id": f"cmp_{secrets.token_hex(16)}",
            "type": "compaction",
            "encrypted_content": packed(summary),
        }
        return {
            "id": self._head.id,
            "object": "response.compaction",
            "created_at": self._head.created,
            "output": [*self._kept, item],
            "usage": responses_usage(self._chat.usage()),
        }


def _response(asked: CompactFields | CountFields) -> ResponsesFields:
    """The request of a response that reads the same."""
    given = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None}
    return ResponsesFields(**{"input": [], **given})


async def _whole(request: Request, fields: ResponsesFields) -> ResponsesFields:
    if fields.previous_response_id is None:
        return fields
    return await following(request, fields, fields.previous_response_id)
