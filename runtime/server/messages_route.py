"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation."""

import asyncio
import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import InvalidRequestError, RametError
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.errors import HttpError, anthropic_body, openai_error
from ramet.runtime.server.gateway import Job
from ramet.runtime.server.messages_fields import MessagesFields, chosen_tools, conversation, sampling
from ramet.runtime.server.messages_writer import MessagesWriter
from ramet.runtime.server.nested_fields import check_anthropics_tools, check_thinking, check_turns
from ramet.runtime.server.responding import Framing, answer
from ramet.runtime.server.shared_fields import RoutingFields, sampling_params
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of
from ramet.runtime.server.tools.results import check_turn_results
from ramet.runtime.server.tools.schema_errors import ANTHROPICS_PLACE

RECORDS = (MessagesFields, RoutingFields)
"""What a body's fields are spread over."""

RENAMED = {"stop": "stop_sequences", "prompts": "messages"}


class AnthropicFraming(Framing):
    """Named events; a stream ends with message_stop, and has no other end."""

    def frame(self, data: bytes) -> bytes:
        name = msgspec.json.decode(data, type=_Typed).type
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def end(self) -> bytes:
        return b""

    def error(self, error: HttpError) -> bytes:
        return self.frame(anthropic_body(error))


class _Typed(msgspec.Struct):
    type: str


async def messages(request: Request) -> Response:
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
        translate=lambda error: openai_error(prompt.told(error, ANTHROPICS_PLACE), RENAMED),
        framing=AnthropicFraming(),
    )


async def count_tokens(request: Request) -> Response:
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
    check_turns(fields.messages, fields.system)
    check_anthropics_tools(fields.tools or (), fields.tool_choice)
    check_thinking(fields.thinking, fields.metadata)
    chat = conversation(fields, reads_thinking="enable_thinking" in state.chat_model.template)
    check_turn_results(fields.messages)
    return await asyncio.to_thread(state.chat_model.prompt, chat, chosen_tools(fields), None)
