"""The native routes of ``protocol.wire``: what ramet's own clients speak, ids in and ids out."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import InvalidRequestError, RametError
from ramet.runtime.protocol.wire import (
    ChatOptions,
    ContinuationScore,
    DetokenizeRequest,
    DetokenizeResponse,
    EncodeChatRequest,
    EncodeChatResponse,
    GenerateEvent,
    GenerateOutput,
    GenerateRequest,
    GenerateResponse,
    Input,
    ScoreRequest,
    ScoreResponse,
    TokenizeRequest,
    TokenizeResponse,
    encode_event,
    finite_logprobs,
    to_finite,
)
from ramet.runtime.server.body import convert
from ramet.runtime.server.errors import bad_request, native_error
from ramet.runtime.server.gateway import Answers, Job
from ramet.runtime.server.responding import answer, while_connected
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of
from ramet.runtime.tokenizer import encode_chat

OTHERS_NAMES = {
    "text": "input.text",
    "prompt": "input.text",
    "input_ids": "input.token_ids",
    "messages": "input.messages",
    "sampling_params": "params",
    "return_logprob": "params.logprobs, a number of alternatives (0: those of the tokens alone)",
    "logprob_start_len": "params.prompt_logprobs with params.prompt_logprobs_start",
    "top_logprobs_num": "params.logprobs",
    "rid": "request_id",
    "session_params": "session, the id of one of /v1/sessions",
}
"""What SGLang calls the fields of /generate -> what they are here."""

_GRAMMAR = 'grammar, an object as {{"type": "{kind}", "{field}": ...}}'
OTHERS_PARAMS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop",
    "sampling_seed": "seed",
    "json_schema": _GRAMMAR.format(kind="json_schema", field="schema"),
    "regex": _GRAMMAR.format(kind="regex", field="pattern"),
    "ebnf": _GRAMMAR.format(kind="ebnf", field="grammar"),
    "structural_tag": _GRAMMAR.format(kind="structural_tag", field="spec"),
}
"""The same of its sampling parameters, which stand in ``params``."""


async def generate(request: Request) -> Response:
    """POST /generate"""
    state = state_of(request)
    body = await state.read(request)
    _check_names(body)
    asked = convert(body, GenerateRequest)
    state.check_model(asked.model)
    _check_input(state, asked.input)
    tenant = tenant_of(request)
    try:
        job = Job(
            params=asked.params,
            **_prompt(asked.input),
            tag=asked.tag,
            priority=asked.priority,
            cache_salt=tenant.salted(asked.cache_salt),
            request_id=None if asked.request_id is None else tenant.request_id(asked.request_id),
            operation="text_completion" if asked.input.messages is None else "chat",
            session=asked.session,
            tenant=tenant,
        )
    except RametError as error:
        raise native_error(error) from error
    return await answer(
        request, state.gateway, job, GenerateWriter, stream=asked.stream, translate=native_error
    )


class GenerateWriter:
    """The native form: an increment is an event, as it stands."""

    def __init__(self, answers: Answers) -> None:
        self._prompt_token_ids = answers.prompt_token_ids[0]
        self._request_id = answers.request_id

    def push(self, increment: Increment) -> list[GenerateEvent]:
        return [
            GenerateEvent(
                index=increment.index,
                text=increment.text,
                token_ids=increment.token_ids,
                logprobs=increment.logprobs,
                prompt_logprobs=increment.prompt_logprobs,
                finish_reason=increment.finish_reason,
                stop_reason=increment.stop_reason,
                stats=increment.stats,
                request_id=self._request_id,
            )
        ]

    def end(self) -> list[GenerateEvent]:
        return []

    def encode(self, chunk: GenerateEvent) -> bytes:
        return encode_event(chunk)

    def fold(self, chunks: Sequence[GenerateEvent]) -> GenerateResponse:
        indices = sorted({chunk.index for chunk in chunks})
        prompt_logprobs = next((c.prompt_logprobs for c in chunks if c.prompt_logprobs is not None), None)
        return GenerateResponse(
            request_id=self._request_id,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[_output([chunk for chunk in chunks if chunk.index == index]) for index in indices],
            prompt_logprobs=finite_logprobs(prompt_logprobs),
        )


def _output(chunks: Sequence[GenerateEvent]) -> GenerateOutput:
    last = chunks[-1]
    assert last.finish_reason is not None
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs or []]
    return GenerateOutput(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=finite_logprobs(logprobs) if any(chunk.logprobs is not None for chunk in chunks) else None,
        stats=last.stats,
    )


async def score(request: Request) -> Response:
    """POST /score"""
    state = state_of(request)
    asked = convert(await state.read(request), ScoreRequest)
    state.check_model(asked.model)
    _check_input(state, asked.input)
    _check_size(state, asked.continuations, field="continuations")
    try:
        prompt_ids = await asyncio.to_thread(_input_ids, state, asked.input)
        if not asked.continuations:
            raise InvalidRequestError("continuations is empty; give at least one", field="continuations")
        # However many the continuations are, they are one request.
        gateway = state.gateway
        with gateway.room(1), gateway.traced_score(asked.tag, len(asked.continuations)):
            scores = await while_connected(
                request,
                state.engine.ascore(
                    prompt_ids,
                    asked.continuations,
                    tag=asked.tag,
                    priority=asked.priority,
                    cache_salt=tenant_of(request).salted(asked.cache_salt),
                ),
            )
    except RametError as error:
        raise native_error(error) from error
    return json_response(
        ScoreResponse(
            scores=[
                ContinuationScore(
                    token_ids=one.token_ids,
                    token_logprobs=[to_finite(value) for value in one.token_logprobs],
                    num_cached_tokens=one.num_cached_tokens,
                )
                for one in scores
            ]
        )
    )


async def encode(request: Request) -> Response:
    """POST /encode_chat"""
    state = state_of(request)
    asked = convert(await state.read(request), EncodeChatRequest)
    _check_size(state, messages=asked.messages, chat=asked.chat)
    try:
        token_ids = await asyncio.to_thread(_chat_ids, state, asked.messages, asked.chat)
    except RametError as error:
        raise native_error(error) from error
    text = state.engine.tokenizer.decode(token_ids, skip_special_tokens=False)
    return json_response(EncodeChatResponse(text=text, token_ids=token_ids))


async def tokenize(request: Request) -> Response:
    """POST /tokenize"""
    state = state_of(request)
    asked = convert(await state.read(request), TokenizeRequest)
    _check_size(state, asked.text)
    token_ids = await asyncio.to_thread(
        state.engine.tokenizer.encode, asked.text, add_bos=asked.add_bos, allow_special=asked.allow_special
    )
    return json_response(TokenizeResponse(token_ids=token_ids))


async def detokenize(request: Request) -> Response:
    """POST /detokenize"""
    state = state_of(request)
    asked = convert(await state.read(request), DetokenizeRequest)
    _check_size(state, asked.token_ids, field="token_ids")
    vocab_size = state.engine.info.vocab_size
    for position, token_id in enumerate(asked.token_ids):
        if not 0 <= token_id < vocab_size:
            message = f"token_ids[{position}] is {token_id}; the model's token ids are 0 to {vocab_size - 1}"
            raise native_error(InvalidRequestError(message, field="token_ids"))
    text = await asyncio.to_thread(
        state.engine.tokenizer.decode, asked.token_ids, skip_special_tokens=asked.skip_special_tokens
    )
    return json_response(DetokenizeResponse(text=text))


async def tokenizer(request: Request) -> Response:
    """GET /tokenizer"""
    spec = state_of(request).tokenizer_spec
    return Response(msgspec.msgpack.encode(spec), media_type="application/msgpack")


def _check_names(body: dict[str, Any]) -> None:
    """Raises HttpError (400) for a name that another server has for one of ours."""
    params = body.get("params")
    for where, given, names in (
        ("", body, OTHERS_NAMES),
        ("params.", params if isinstance(params, dict) else {}, OTHERS_PARAMS),
    ):
        for name, ours in names.items():
            if name in given:
                raise bad_request(
                    f"there is no parameter {where + name!r}; here it is {where}{ours}",
                    param=where + name,
                    code="unknown_parameter",
                )


def _check_size(
    state: ServerState,
    *texts: object,
    messages: list[dict[str, Any]] | None = None,
    chat: ChatOptions | None = None,
    field: str = "input",
) -> None:
    """Raises HttpError for what the context cannot hold, before it is rendered or tokenised."""
    try:
        state.prompt_size.check_turns(messages or (), "messages")
        tools = None if chat is None else chat.tools
        state.prompt_size.check([*texts, messages, tools], field)
    except RametError as error:
        raise native_error(error) from error


def _check_input(state: ServerState, asked: Input) -> None:
    _check_size(state, asked.text, asked.token_ids, messages=asked.messages, chat=asked.chat)


def _prompt(asked: Input) -> dict[str, Any]:
    if asked.messages is not None:
        return {"messages": asked.messages, "chat_options": _chat_options(asked.chat)}
    return {"prompts": asked.text if asked.text is not None else asked.token_ids}


def _chat_options(chat: ChatOptions) -> dict[str, Any]:
    """Raises InvalidRequestError where a template's variable has a field of its own."""
    for name in ("tools", "add_generation_prompt", "continue_final_message"):
        if name in chat.template_kwargs:
            raise InvalidRequestError(
                f"template_kwargs.{name} has a parameter of its own; give {name} beside it",
                field=f"template_kwargs.{name}",
            )
    return {
        **chat.template_kwargs,
        "tools": chat.tools,
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
    }


def _input_ids(state: ServerState, asked: Input) -> str | list[int]:
    if asked.messages is not None:
        return _chat_ids(state, asked.messages, asked.chat)
    return asked.text if asked.text is not None else (asked.token_ids or [])


def _chat_ids(state: ServerState, messages: list[dict[str, Any]], chat: ChatOptions) -> list[int]:
    return encode_chat(state.engine.tokenizer, messages, **_chat_options(chat))
