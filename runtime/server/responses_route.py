"""POST /v1/responses: OpenAI's newer form of a conversation, without storage."""

import asyncio
import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import RametError
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.errors import HttpError, openai_error
from ramet.runtime.server.gateway import Answers, Job
from ramet.runtime.server.responding import Framing, answer
from ramet.runtime.server.responses_fields import (
    ResponsesFields,
    chosen_tools,
    constraint,
    conversation,
    without_refused,
)
from ramet.runtime.server.responses_writer import Event, ResponsesWriter
from ramet.runtime.server.shared_fields import RoutingFields, SamplingFields, grammar_spec, sampling_params
from ramet.runtime.server.state import state_of, tenant_of

RECORDS = (ResponsesFields, RoutingFields)
"""What a body's fields are spread over."""

RENAMED = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "prompts": "input",
    "messages": "input",
    "grammar": "text.format",
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
    own_part, routing_part = split(without_refused(await state.read(request)), *RECORDS)
    fields = convert(own_part, ResponsesFields)
    routing = convert(routing_part, RoutingFields)
    state.check_model(fields.model)
    try:
        if isinstance(fields.input, list):
            state.prompt_size.check_turns(fields.input, "input")
        state.prompt_size.check([fields.input, fields.instructions, fields.tools], "input")
        chat, choice = conversation(fields), chosen_tools(fields)
        wanted = grammar_spec(constraint(fields))
        prompt = await asyncio.to_thread(state.chat_model.prompt, chat, choice, wanted)
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

    def writer(answers: Answers) -> ResponsesWriter:
        chat_writer = ChatWriter(answers, head, prompt, state.engine.tokenizer, include_usage=False)
        return ResponsesWriter(chat_writer, head, _echoed(fields))

    return await answer(
        request,
        state.gateway,
        job,
        writer,
        stream=bool(fields.stream),
        translate=lambda error: openai_error(error, RENAMED),
        framing=ResponsesFraming(),
    )


def _echoed(fields: ResponsesFields) -> Event:
    """What a response repeats of its request."""
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "tools": fields.tools or [],
        "tool_choice": fields.tool_choice or "auto",
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "text": fields.text or {"format": {"type": "text"}},
        "reasoning": fields.reasoning or {"effort": None, "summary": None},
    }
