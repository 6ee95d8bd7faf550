"""/v1/responses: OpenAI's newer form of a conversation; kept where the server has a store for them."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import RametError
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.errors import HttpError, bad_request, openai_error
from ramet.runtime.server.gateway import Answers, Job
from ramet.runtime.server.nested_fields import check_items, check_responses_tools
from ramet.runtime.server.responding import Framing, answer
from ramet.runtime.server.response_store import ResponseStore, StoredResponse
from ramet.runtime.server.responses_fields import (
    ResponsesFields,
    chosen_tools,
    constraint,
    conversation,
    in_our_names,
    input_items,
    without_refused,
)
from ramet.runtime.server.responses_writer import Event, ResponsesWriter
from ramet.runtime.server.shared_fields import RoutingFields, SamplingFields, grammar_spec, sampling_params
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of
from ramet.runtime.server.tools.results import check_item_results
from ramet.runtime.server.tools.schema_errors import RESPONSES_PLACE

RECORDS = (ResponsesFields, RoutingFields)
"""What a body's fields are spread over."""

RENAMED = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "prompts": "input",
    "messages": "input",
    "grammar": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


class ResponsesFraming(Framing):
    """Named events; a stream ends with the response, whole or failed."""

    def frame(self, data: bytes) -> bytes:
        name = msgspec.json.decode(data, type=_Typed).type
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def end(self) -> bytes:
        return b""

    def error(self, error: HttpError) -> bytes:
        detail = error.detail
        event = {"type": "error", "code": str(detail.code), "message": detail.message, "param": detail.param}
        return self.frame(msgspec.json.encode(event))


class _Typed(msgspec.Struct):
    type: str


async def responses(request: Request) -> Response:
    """POST /v1/responses"""
    state = state_of(request)
    store = state.response_store
    body = without_refused(await state.read(request), stores=store is not None)
    own_part, routing_part = split(body, *RECORDS)
    fields = convert(own_part, ResponsesFields)
    routing = convert(routing_part, RoutingFields)
    state.require_model(fields.model)
    if fields.previous_response_id is not None:
        fields = await following(request, fields, fields.previous_response_id)
    try:
        prompt = await prompt_of(state, fields)
        params = sampling_params(
            SamplingFields(temperature=fields.temperature, top_p=fields.top_p),
            max_tokens=fields.max_output_tokens,
            grammar=prompt.grammar,
            skip_special_tokens=not prompt.keeps_special_text,
        )
        job = Job.routed(params, routing, tenant_of(request), prompts=prompt.token_ids)
    except RametError as error:
        raise openai_error(error, RENAMED) from error
    head = AnswerHead(
        id=routing.request_id or f"resp_{secrets.token_hex(16)}",
        created=int(time.time()),
        model=fields.model or state.model,
    )

    def writer(answers: Answers) -> ResponsesWriter | StoringWriter:
        chat_writer = ChatWriter(answers, head, prompt, state.engine.tokenizer, include_usage=False)
        response_writer = ResponsesWriter(chat_writer, head, _echoed(fields))
        if store is None or not fields.store:
            return response_writer
        return StoringWriter(response_writer, store, tenant_of(request).name, input_items(fields.input))

    return await answer(
        request,
        state.gateway,
        job,
        writer,
        stream=bool(fields.stream),
        translate=lambda error: openai_error(prompt.told(error, RESPONSES_PLACE), RENAMED),
        framing=ResponsesFraming(),
    )


async def prompt_of(state: ServerState, fields: ResponsesFields) -> ChatPrompt:
    """Raises InvalidRequestError or HttpError for what is wrong with the input, the tools or the constraint."""
    if isinstance(fields.input, list):
        state.prompt_size.check_turns(fields.input, "input")
    state.prompt_size.check([fields.input, fields.instructions, fields.tools], "input")
    check_responses_tools(fields.tools or (), fields.tool_choice)
    if isinstance(fields.input, list):
        check_items(fields.input, "input")
    chat, choice = conversation(fields), chosen_tools(fields)
    if isinstance(fields.input, list):
        check_item_results(fields.input, "input")
    try:
        wanted = grammar_spec(constraint(fields))
    except HttpError as error:
        raise in_our_names(error) from None
    return await asyncio.to_thread(state.chat_model.prompt, chat, choice, wanted)


class StoringWriter:
    """As the ResponsesWriter inside; the response is stored before its last event is sent."""

    def __init__(
        self, inner: ResponsesWriter, store: ResponseStore, tenant: str, items: list[dict[str, Any]]
    ) -> None:
        """``items``: of the input, what came before it included."""
        self._inner = inner
        self._store = store
        self._tenant = tenant
        self._items = items

    def push(self, increment: Increment) -> list[Event]:
        return self._inner.push(increment)

    def end(self) -> list[Event]:
        """Raises RequestFailedError where the response cannot be stored."""
        events = self._inner.end()
        response = events[-1]["response"]
        whole = StoredResponse(response, [*self._items, *response["output"]], len(self._items))
        self._store.save(self._tenant, whole)
        return events

    def encode(self, chunk: Event) -> bytes:
        return self._inner.encode(chunk)

    def fold(self, chunks: Sequence[Event]) -> Event:
        return self._inner.fold(chunks)


async def stored_response(request: Request) -> Response:
    """GET /v1/responses/{response_id}"""
    return json_response((await _stored(request, request.path_params["response_id"])).response)


async def stored_input(request: Request) -> Response:
    """GET /v1/responses/{response_id}/input_items: oldest first."""
    items = (await _stored(request, request.path_params["response_id"])).input_items
    return json_response({"object": "list", "data": items, "has_more": False})


async def delete_response(request: Request) -> Response:
    """DELETE /v1/responses/{response_id}"""
    store, response_id = state_of(request).response_store, request.path_params["response_id"]
    if store is None or not await asyncio.to_thread(store.delete, tenant_of(request).name, response_id):
        raise _not_stored(response_id, 404)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{response_id}/cancel: of OpenAI's, those in the background are."""
    response_id = request.path_params["response_id"]
    await _stored(request, response_id)
    raise bad_request(
        f"the response {response_id[:200]!r} has ended: only what runs in the background can be cancelled, and "
        "responses here do not (POST /v1/programs with background does)",
        code="invalid_value",
    )


async def _stored(request: Request, response_id: str, status: int = 404) -> StoredResponse:
    """Raises HttpError where there is no such response of the tenant's."""
    store = state_of(request).response_store
    found = None
    if store is not None:
        found = await asyncio.to_thread(store.load, tenant_of(request).name, response_id)
    if found is None:
        raise _not_stored(response_id, status)
    return found


def _not_stored(response_id: str, status: int) -> HttpError:
    return bad_request(
        f"there is no stored response {response_id[:200]!r}; those that asked for store: true are",
        param="previous_response_id" if status == 400 else None,
        code="previous_response_not_found" if status == 400 else "not_found",
        status=status,
    )


async def following(request: Request, fields: ResponsesFields, previous: str) -> ResponsesFields:
    """The same with the conversation that it follows before its input."""
    before = (await _stored(request, previous, 400)).items
    return msgspec.structs.replace(fields, input=[*before, *input_items(fields.input)])


def _echoed(fields: ResponsesFields) -> Event:
    """What a response repeats of its request, and the values of what cannot be chosen here."""
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "tools": [
            {"description": None, "parameters": None, "strict": None, **one} for one in fields.tools or ()
        ],
        "tool_choice": fields.tool_choice or "auto",
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "text": {"format": {"type": "text"}, **(fields.text or {})},
        "reasoning": {"effort": None, "summary": None, **(fields.reasoning or {})},
        "truncation": "disabled",
        "background": False,
        "service_tier": "default",
        "previous_response_id": fields.previous_response_id,
        "store": bool(fields.store),
        "metadata": fields.metadata or {},
        "safety_identifier": fields.safety_identifier,
        "prompt_cache_key": fields.prompt_cache_key,
    }
