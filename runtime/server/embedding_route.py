"""/v1/embeddings: what a causal model makes of a text, as OpenAI's reference gives it."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ramet.runtime.engine import Embedding
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, RametError
from ramet.runtime.server.body import convert, unknown_field
from ramet.runtime.server.errors import deadline_exceeded, openai_error
from ramet.runtime.server.responding import CLIENT_GONE, while_connected
from ramet.runtime.server.shared_fields import IGNORED
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

_RENAMED = {"prompts": "input"}
_ELSEWHERE = {
    "instruction": "write it before the text of input",
    "truncate": "shorten the input: nothing is cut without a word",
    "truncate_prompt_tokens": "shorten the input: nothing is cut without a word",
    "embed_dtype": "use encoding_format",
    "input_type": "write what the text is for before it",
}


class EmbeddingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters, and below ramet's own."""

    input: str | list[str | int | list[int]]
    """A text or its token ids, or a list of those."""
    model: str | None = None
    encoding_format: str = "float"
    """float, or base64: little-endian float32."""
    dimensions: int | None = None
    """The model's own number, or nothing: its embeddings cannot be shortened."""
    pooling: str = "last"
    """last: of the last token; mean: the mean over all of them."""
    normalize: bool = True
    """To length 1, as OpenAI's are."""
    cache_salt: str = ""
    priority: int = 0
    timeout: float | None = None
    program: ProgramTag = ProgramTag()


RECORDS = (EmbeddingFields,)


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings"""
    state = state_of(request)
    body = {name: value for name, value in (await state.read(request)).items() if name not in IGNORED}
    for name, remedy in _ELSEWHERE.items():
        if name in body:
            raise unknown_field(name, (), remedy)
    fields = convert(body, EmbeddingFields)
    state.check_model(fields.model)
    inputs = _inputs(fields.input)
    try:
        _check(state, fields, inputs)
        timeout = min(state.config.request_timeout, fields.timeout or state.config.request_timeout)
        with state.gateway.room(len(inputs)):
            found = await while_connected(request, _embedded(request, state, fields, inputs, timeout))
    except RametError as error:
        raise openai_error(error, _RENAMED) from error
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    return json_response(_answer(fields, state.model, found))


async def _embedded(
    request: Request, state: ServerState, fields: EmbeddingFields, inputs: Sequence[Any], timeout: float
) -> list[Embedding]:
    try:
        async with asyncio.timeout(timeout):
            return await state.engine.aembed(
                inputs,
                pooling=fields.pooling,
                normalize=fields.normalize,
                tag=fields.program,
                priority=fields.priority,
                cache_salt=tenant_of(request).salted(fields.cache_salt),
            )
    except TimeoutError:
        raise deadline_exceeded(timeout) from None


def _inputs(given: str | list[Any]) -> list[Any]:
    """One entry a text or list of token ids."""
    if isinstance(given, list) and not all(isinstance(one, int) for one in given):
        return given
    return [given]


def _check(state: ServerState, fields: EmbeddingFields, inputs: Sequence[Any]) -> None:
    size = state.engine.info.embedding_size
    if fields.input == [] or any(one == [] or one == "" for one in inputs):
        raise InvalidRequestError(
            "input is empty, or has an empty entry; give at least one token", field="input"
        )
    if fields.encoding_format not in ("float", "base64"):
        raise InvalidRequestError(
            f"encoding_format is {fields.encoding_format[:80]!r}; it must be float or base64",
            field="encoding_format",
        )
    if fields.dimensions is not None and fields.dimensions != size:
        raise InvalidRequestError(
            f"dimensions is {fields.dimensions}; this model's embeddings have {size} numbers, and were not "
            "trained to be shortened: leave it out",
            field="dimensions",
        )
    if fields.timeout is not None and not 0 < fields.timeout <= 1e7:
        raise InvalidRequestError(
            f"timeout is {fields.timeout}; it must be a number of seconds above 0", field="timeout"
        )
    state.gateway.check_size(len(inputs))
    for one in inputs:
        state.prompt_size.check(one, "input")


def _answer(fields: EmbeddingFields, model: str, found: Sequence[Embedding]) -> dict[str, Any]:
    num_tokens = sum(len(one.token_ids) for one in found)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(one.embedding, fields.encoding_format),
            }
            for index, one in enumerate(found)
        ],
        "model": fields.model or model,
        "usage": {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(one.num_cached_tokens for one in found)},
        },
    }


def _encoded(vector: Sequence[float], encoding_format: str) -> list[float] | str:
    rounded = np.array(vector, dtype="<f4")
    if encoding_format == "base64":
        return base64.b64encode(rounded.tobytes()).decode()
    numbers: list[float] = rounded.tolist()
    return numbers
