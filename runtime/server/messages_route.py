"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import InvalidRequestError, RametError
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.errors import HttpError, openai_error
from ramet.runtime.server.gateway import Job
from ramet.runtime.server.messages_fields import MessagesFields, chosen_tools, conversation, sampling
from ramet.runtime.server.messages_writer import MessagesWriter
from ramet.runtime.server.responding import Framing, answer
from ramet.runtime.server.shared_fields import RoutingFields, sampling_params
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

RECORDS = (MessagesFields, RoutingFields)
"""What a body's fields are spread over."""

RENAMED = {"stop": "stop_sequences", "prompts": "messages"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicFraming(Framing):
    """Named events; a stream ends with message_stop, and has no other end."""

    def frame(self, data: bytes) -> bytes:
        name = msgspec.json.decode(data, type=_Typed).type
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def end(self) -> bytes:
        return b""

    def error(self, error: HttpError) -> bytes:
        return self.frame(error_data(error))


class _Typed(msgspec.Struct):
    type: str


def error_data(error: HttpError) -> bytes:
    """An error in Anthropic's body."""
    kind = ERROR_TYPES.get(error.status, "api_error")
    message = error.detail.message[:1000].encode("utf-8", "replace").decode()
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def anthropic_errors(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint, with its errors in Anthropic's body."""

    async def told(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HttpError as error:
            return Response(error_data(error), error.status, error.headers, "application/json")

    told.__name__, told.__doc__ = endpoint.__name__, endpoint.__doc__
    return told


async def _messages(request: Request) -> Response:
    """POST /v1/messages"""
    state = state_of(request)
    own_part, routing_part = split(await state.read(request), *RECORDS)
    fields = convert(own_part, MessagesFields)
    routing = convert(routing_part, RoutingFields)
    state.require_model(fields.model)
    try:
        if fields.max_tokens is None:
            raise InvalidRequestError("max_tokens is missing; say how many at most", field="max_tokens")
        prompt = await _prompt(state, fields)
        params = sampling_params(
            sampling(fields),
            max_tokens=fields.max_tokens,
            grammar=prompt.grammar,
            skip_special_tokens=not prompt.keeps_special_text,
        )
        job = Job.routed(params, routing, tenant_of(request), prompts=prompt.token_ids)
    except RametError as error:
        raise openai_error(error, RENAMED) from error
    head = AnswerHead(
        id=routing.request_id or f"msg_{secrets.token_hex(12)}",
        created=int(time.time()),
        model=fields.model or state.model,
    )
    return await answer(
        request,
        state.gateway,
        job,
        lambda answers: MessagesWriter(
            ChatWriter(answers, head, prompt, state.engine.tokenizer, include_usage=False),
            head,
            len(prompt.token_ids),
        ),
        stream=fields.stream,
        translate=lambda error: openai_error(error, RENAMED),
        framing=AnthropicFraming(),
    )


async def _count_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens"""
    state = state_of(request)
    fields = convert(split(await state.read(request), MessagesFields)[0], MessagesFields)
    state.require_model(fields.model)
    try:
        prompt = await _prompt(state, fields)
    except RametError as error:
        raise openai_error(error, RENAMED) from error
    return json_response({"input_tokens": len(prompt.token_ids)})


async def _prompt(state: ServerState, fields: MessagesFields) -> ChatPrompt:
    state.prompt_size.check_turns(fields.messages, "messages")
    state.prompt_size.check([fields.messages, fields.system, fields.tools], "messages")
    chat = conversation(fields, reads_thinking="enable_thinking" in state.chat_model.template)
    return await asyncio.to_thread(state.chat_model.prompt, chat, chosen_tools(fields), None)


messages = anthropic_errors(_messages)
count_tokens = anthropic_errors(_count_tokens)
