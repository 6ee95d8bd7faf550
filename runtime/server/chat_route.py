"""POST /v1/chat/completions"""

import asyncio
import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import RametError, SamplingParams
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_fields import ChatFields, check_stream_options, output_limit, wanted_logprobs
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.chat_writer import AnswerHead, ChatWriter
from ramet.runtime.server.errors import openai_error
from ramet.runtime.server.gateway import Job
from ramet.runtime.server.nested_fields import chat_messages, chat_tools, check_chat_choice
from ramet.runtime.server.responding import answer
from ramet.runtime.server.shared_fields import (
    ConstraintFields,
    RoutingFields,
    SamplingFields,
    grammar_spec,
    renamed_for,
    sampling_params,
    without_refused,
)
from ramet.runtime.server.state import state_of, tenant_of
from ramet.runtime.server.tools.definitions import tool_choice
from ramet.runtime.server.tools.results import check_chat_results
from ramet.runtime.server.tools.schema_errors import CHAT_PLACE

RECORDS = (ChatFields, SamplingFields, ConstraintFields, RoutingFields)
"""What a body's fields are spread over."""


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions"""
    state = state_of(request)
    body = without_refused(await state.read(request))
    chat_part, sampling_part, constraint_part, routing_part = split(body, *RECORDS)
    fields = convert(chat_part, ChatFields)
    sampling = convert(sampling_part, SamplingFields)
    constraints = convert(constraint_part, ConstraintFields)
    routing = convert(routing_part, RoutingFields)
    state.require_model(fields.model)
    renamed = {**renamed_for(constraints, has_tools=bool(fields.tools)), "prompts": "messages"}
    fields = _with_known_fields(fields)
    try:
        check_stream_options(fields.stream, fields.stream_options)
        choice = tool_choice(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls)
        wanted = grammar_spec(constraints)
        _, renamed["max_tokens"] = output_limit(fields)
        renamed["logprobs"] = "top_logprobs"
        # Checked before the prompt is tokenised, which may take longer.
        _ = _params(fields, sampling, None)
        state.prompt_size.check_turns(fields.messages, "messages")
        state.prompt_size.check([fields.messages, fields.tools], "messages")
        prompt = await asyncio.to_thread(state.chat_model.prompt, fields, choice, wanted)
        check_chat_results(fields.messages)
        params = _params(fields, sampling, prompt)
        job = Job.routed(params, routing, tenant_of(request), prompts=prompt.token_ids)
    except RametError as error:
        raise openai_error(error, renamed) from error
    head = AnswerHead(
        id=routing.request_id or f"chatcmpl-{secrets.token_hex(16)}",
        created=int(time.time()),
        model=fields.model or state.model,
    )
    include_usage = fields.stream_options is not None and fields.stream_options.include_usage
    return await answer(
        request,
        state.gateway,
        job,
        lambda answers: ChatWriter(answers, head, prompt, state.engine.tokenizer, include_usage=include_usage),
        stream=bool(fields.stream),
        translate=lambda error: openai_error(prompt.told(error, CHAT_PLACE), renamed),
    )


def _with_known_fields(fields: ChatFields) -> ChatFields:
    """Less what is ignored in its objects. Raises HttpError (400) for what would not be honoured."""
    check_chat_choice(fields.tool_choice)
    tools = None if fields.tools is None else chat_tools(fields.tools)
    return msgspec.structs.replace(fields, messages=chat_messages(fields.messages), tools=tools)


def _params(fields: ChatFields, sampling: SamplingFields, prompt: ChatPrompt | None) -> SamplingParams:
    limit, _ = output_limit(fields)
    others: dict[str, object] = {"max_tokens": limit, "logprobs": wanted_logprobs(fields)}
    if prompt is not None:
        others["grammar"] = prompt.grammar
        if prompt.keeps_special_text and sampling.skip_special_tokens is None:
            others["skip_special_tokens"] = False
    return sampling_params(sampling, **others)
