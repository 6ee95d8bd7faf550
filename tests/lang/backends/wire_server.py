"""A ramet server's native routes on an engine in this process, for the client's tests."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from ramet.runtime.engine import EngineFace
from ramet.runtime.protocol import RametError, wire
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.loopback import Answer, Handler, Request, of_json


def wire_handler(face: EngineFace, *, api_key: str | None = None) -> Handler:
    async def answer(request: Request) -> Answer:
        if request.path == wire.HEALTH_ROUTE:
            return Answer()
        if api_key is not None and request.headers.get("authorization") != f"Bearer {api_key}":
            detail = wire.ErrorDetail(message="this key is not known", code="invalid_api_key")
            return Answer(401, msgspec.json.encode(wire.ErrorBody(error=detail)))
        try:
            return await _routed(face, request)
        except RametError as error:
            return _failed(error)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, RametError):
                return _failed(error.__cause__)
            raise

    return answer


async def _routed(face: EngineFace, request: Request) -> Answer:
    match request.path:
        case wire.MODEL_INFO_ROUTE:
            info = face.info
            return _said(
                wire.ServedModel(
                    model=info.model,
                    vocab_size=info.vocab_size,
                    context_length=info.context_length,
                    kv_tokens=info.kv_tokens,
                    grammars=info.grammars,
                )
            )
        case wire.TOKENIZER_ROUTE:
            assert isinstance(face.tokenizer, FastTokenizer)
            return Answer(body=msgspec.msgpack.encode(face.tokenizer.spec))
        case wire.GENERATE_ROUTE:
            return await _generated(face, msgspec.json.decode(request.content, type=wire.GenerateRequest))
        case wire.SCORE_ROUTE:
            return await _scored(face, msgspec.json.decode(request.content, type=wire.ScoreRequest))
        case wire.FLUSH_CACHE_ROUTE:
            num_tokens = await asyncio.to_thread(face.flush_cache)
            return _said(wire.FlushCacheResponse(num_tokens=num_tokens))
        case wire.STATS_ROUTE:
            return of_json({"engine": msgspec.to_builtins(await asyncio.to_thread(face.stats))})
        case _:
            return Answer(404, b'{"detail": "Not Found"}')


async def _generated(face: EngineFace, request: wire.GenerateRequest) -> Answer:
    options = {"tag": request.tag, "priority": request.priority, "cache_salt": request.cache_salt}
    token_ids = request.input.token_ids
    assert token_ids is not None
    if not request.stream:
        output = await face.agenerate(token_ids, request.params, **options)  # type: ignore[call-overload]
        return _said(
            wire.GenerateResponse(
                request_id=output.request_id, prompt_token_ids=output.prompt_token_ids, outputs=[]
            )
        )
    stream = face.astream(token_ids, request.params, **options)  # type: ignore[arg-type]

    async def parts() -> AsyncIterator[bytes]:
        async with stream:
            try:
                async for one in stream:
                    event = wire.GenerateEvent(
                        index=one.index,
                        text=one.text,
                        token_ids=one.token_ids,
                        logprobs=one.logprobs,
                        finish_reason=one.finish_reason,
                        stop_reason=one.stop_reason,
                        stats=one.stats,
                    )
                    yield b"data: " + wire.encode_event(event) + b"\n\n"
            except RametError as error:
                event = wire.GenerateEvent(error=wire.error_detail(error))
                yield b"data: " + wire.encode_event(event) + b"\n\n"
            yield b"data: [DONE]\n\n"

    return Answer(headers={"content-type": "text/event-stream"}, parts=parts())


async def _scored(face: EngineFace, request: wire.ScoreRequest) -> Answer:
    scores = await face.ascore(
        request.input.token_ids, request.continuations, tag=request.tag, cache_salt=request.cache_salt
    )
    return _said(
        wire.ScoreResponse(
            scores=[
                wire.ContinuationScore(
                    token_ids=one.token_ids,
                    token_logprobs=[wire.to_finite(logprob) for logprob in one.token_logprobs],
                    num_cached_tokens=one.num_cached_tokens,
                )
                for one in scores
            ]
        )
    )


def _said(record: msgspec.Struct) -> Answer:
    return Answer(body=msgspec.json.encode(record), headers={"content-type": "application/json"})


def _failed(error: RametError) -> Answer:
    body = msgspec.json.encode(wire.ErrorBody(error=wire.error_detail(error)))
    return Answer(wire.http_status(error), body)
