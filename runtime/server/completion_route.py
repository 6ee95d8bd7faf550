"""POST /v1/completions"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.runtime.protocol import InvalidRequestError, RametError, SamplingParams
from ramet.runtime.server.body import convert, split
from ramet.runtime.server.chat_fields import check_stream_options
from ramet.runtime.server.chat_writer import AnswerHead
from ramet.runtime.server.completion_writer import CompletionWriter
from ramet.runtime.server.errors import openai_error
from ramet.runtime.server.gateway import Job
from ramet.runtime.server.responding import answer
from ramet.runtime.server.shared_fields import (
    ConstraintFields,
    RoutingFields,
    SamplingFields,
    StreamOptions,
    grammar_spec,
    renamed_for,
    sampling_params,
    without_refused,
)
from ramet.runtime.server.state import state_of, tenant_of
from ramet.runtime.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


class CompletionFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is a text completion's own; the rest is in ``shared_fields``."""

    prompt: str | list[Any]
    """A text or a list of token ids, or a list of those for a batch."""
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    """0: nothing is generated, for scoring a prompt with ``echo``."""
    logprobs: int | None = None
    """0: of the tokens alone; k: and of the k most probable ones."""
    echo: bool | None = None
    """The prompt comes first in the answer's text and log probabilities."""


RECORDS = (CompletionFields, SamplingFields, ConstraintFields, RoutingFields)
"""What a body's fields are spread over."""


async def completions(request: Request) -> Response:
    """POST /v1/completions"""
    state = state_of(request)
    body = without_refused(await state.read(request))
    own_part, sampling_part, constraint_part, routing_part = split(body, *RECORDS)
    fields = convert(own_part, CompletionFields)
    sampling = convert(sampling_part, SamplingFields)
    constraints = convert(constraint_part, ConstraintFields)
    routing = convert(routing_part, RoutingFields)
    state.require_model(fields.model)
    renamed = renamed_for(constraints)
    num_prompts = len(fields.prompt) if _is_batch(fields.prompt) else 1
    state.gateway.check_size(num_prompts)
    try:
        check_stream_options(fields.stream, fields.stream_options)
        params = _params(fields, sampling, constraints)
        for prompt in fields.prompt if _is_batch(fields.prompt) else [fields.prompt]:
            state.prompt_size.check(prompt, "prompt")
        job = Job.routed(
            params,
            routing,
            tenant_of(request),
            prompts=fields.prompt,
            num_prompts=num_prompts,
            operation="text_completion",
        )
    except RametError as error:
        raise openai_error(error, renamed) from error
    head = AnswerHead(
        id=routing.request_id or f"cmpl-{secrets.token_hex(16)}",
        created=int(time.time()),
        model=fields.model or state.model,
    )
    include_usage = fields.stream_options is not None and fields.stream_options.include_usage
    return await answer(
        request,
        state.gateway,
        job,
        lambda answers: CompletionWriter(
            answers,
            head,
            state.engine.tokenizer,
            echoed=_texts(fields.prompt, answers.prompt_token_ids, state.engine.tokenizer)
            if fields.echo
            else None,
            without_answer=fields.max_tokens == 0,
            include_usage=include_usage,
        ),
        stream=bool(fields.stream),
        translate=lambda error: openai_error(error, renamed),
    )


def _params(
    fields: CompletionFields, sampling: SamplingFields, constraints: ConstraintFields
) -> SamplingParams:
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    if max_tokens == 0 and not fields.echo:
        raise InvalidRequestError(
            "max_tokens is 0, and echo is not true: there would be no answer; set echo, or ask for a token",
            field="max_tokens",
        )
    return sampling_params(
        sampling,
        # A request computes one token at least; where none is wanted it is dropped.
        max_tokens=max_tokens or 1,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
        grammar=grammar_spec(constraints),
    )


def _is_batch(prompt: object) -> bool:
    return isinstance(prompt, list) and all(isinstance(item, str | list) for item in prompt)


def _texts(prompt: object, token_lists: Sequence[list[int]], tokenizer: Tokenizer) -> list[str]:
    """What to echo of each prompt: its text as it was sent, or what its ids spell."""
    prompts = prompt if _is_batch(prompt) else [prompt]
    assert isinstance(prompts, list)
    return [
        one if isinstance(one, str) else tokenizer.decode(token_ids, skip_special_tokens=False)
        for one, token_ids in zip(prompts, token_lists, strict=True)
    ]
