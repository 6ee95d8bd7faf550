"""What a ramet server and its clients say to each other over HTTP: native routes, their bodies, their errors.

    GET  /model_info    ServedModel
    GET  /tokenizer     the model's TokenizerSpec as MessagePack (``application/msgpack``), so that a client can
                        tokenise, render the chat template and heal tokens exactly as an engine in its process
    POST /generate      GenerateRequest -> GenerateResponse; with ``stream`` server-sent events: a GenerateEvent
                        a ``data:`` line, written by ``encode_event``, and ``data: [DONE]`` at the end
    POST /score         ScoreRequest -> ScoreResponse
    POST /encode_chat   EncodeChatRequest -> EncodeChatResponse
    POST /tokenize      TokenizeRequest -> TokenizeResponse
    POST /detokenize    DetokenizeRequest -> DetokenizeResponse
    POST /flush_cache   FlushCacheResponse
    GET  /stats         an object; its ``engine`` has the engine's counters
    GET  /health        200 once requests are taken

All bodies are JSON, but for the tokenizer's. What goes wrong is answered with ErrorBody and the status that
``http_status`` gives; in a stream that has begun, with one event that has ``error``, and the stream's end. A
client that closes the connection aborts its request.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ramet.runtime.protocol.errors import (
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    RametError,
    RequestAbortedError,
    RequestFailedError,
    UnsupportedConstraintError,
)
from ramet.runtime.protocol.generation import (
    FinishReason,
    Logprob,
    ProgramTag,
    RequestStats,
    TokenLogprobs,
)
from ramet.runtime.protocol.sampling_params import SamplingParams

MODEL_INFO_ROUTE = "/model_info"
TOKENIZER_ROUTE = "/tokenizer"
GENERATE_ROUTE = "/generate"
SCORE_ROUTE = "/score"
ENCODE_CHAT_ROUTE = "/encode_chat"
TOKENIZE_ROUTE = "/tokenize"
DETOKENIZE_ROUTE = "/detokenize"
FLUSH_CACHE_ROUTE = "/flush_cache"
STATS_ROUTE = "/stats"
HEALTH_ROUTE = "/health"

STREAM_END = "[DONE]"
"""The ``data`` of a stream's last event."""
IMPOSSIBLE = -1e300
"""JSON has no infinity: the log probability of what cannot be said is written as this."""

Position = TypeVar("Position", TokenLogprobs, TokenLogprobs | None)

Message = dict[str, Any]
"""A chat message: ``role``, ``content``, and what else the model's template reads."""


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a server runs, and the limits that requests are checked against."""

    model: str
    vocab_size: int
    context_length: int
    """Most tokens of prompt and answer together."""
    kv_tokens: int
    """Size of the KV pool, tokens."""
    grammars: tuple[str, ...] = ()
    """Tags of the GrammarSpec kinds that it enforces."""
    version: str = ""
    """Of ramet."""
    programs: int = 0
    """Version of ``protocol.programs`` in which it takes whole programs; 0: it takes none."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages are rendered by the model's chat template."""

    tools: list[dict[str, Any]] | None = None
    """JSON descriptions of the functions that the model may call."""
    add_generation_prompt: bool | None = None
    """End with the beginning of an assistant's turn; None: unless the final message is continued."""
    continue_final_message: bool = False
    """The last message stays open, and the answer goes on where it stops."""
    template_kwargs: dict[str, Any] = {}
    """Further variables of the template."""


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, in exactly one of three forms.

    Raises:
        InvalidRequestError: none of the three is given, or more than one.
    """

    text: str | None = None
    """Gets the BOS token that the model wants; texts of special tokens in it stand for those tokens."""
    token_ids: list[int] | None = None
    """Taken as they are."""
    messages: list[Message] | None = None
    """Rendered by the model's chat template. Nothing in them becomes a special token."""
    chat: ChatOptions = ChatOptions()

    def __post_init__(self) -> None:
        given = [name for name in ("text", "token_ids", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"input has {' and '.join(given)}" if given else "input has no prompt"
            raise InvalidRequestError(f"{what}; give one of text, token_ids and messages", field="input")


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt, and how it is to be continued."""

    input: Input
    params: SamplingParams = SamplingParams()
    stream: bool = False
    tag: ProgramTag = ProgramTag()
    priority: int = 0
    """Higher runs earlier."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of the same salt."""
    request_id: str | None = None
    """Names the request in logs and metrics; None: the server draws one."""
    session: str | None = None
    """Of /v1/sessions: the whole of it stays in the cache when it has ended."""
    model: str | None = None
    """Refused where the server runs another one; None: whatever it runs."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's four fields of an error. ``code`` tells ramet's own errors apart (see ``error_detail``)."""

    message: str
    type: str = "server_error"
    param: str | None = None
    """The field at fault."""
    code: str | int | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer with a status of 400 or more says."""

    error: ErrorDetail


class GenerateEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One increment of a stream; those of one index concatenate. The last one has a finish_reason.

    An event with ``error`` has nothing else, and is the last but STREAM_END.
    """

    index: int = 0
    """Which of ``n`` answers."""
    text: str = ""
    token_ids: list[int] = []
    """Of the answer, that of a stop included."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token id, where they were asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None
    """With the last increment of an index."""
    request_id: str = ""
    error: ErrorDetail | None = None


class GenerateOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One whole answer; the fields are those of GenerateEvent."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    stats: RequestStats | None = None


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """All answers to one prompt, by index."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[GenerateOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How probable is each continuation after the prompt? What they share is computed once."""

    input: Input
    continuations: list[list[int] | str]
    tag: ProgramTag = ProgramTag()
    priority: int = 0
    cache_salt: str = ""
    model: str | None = None


class ContinuationScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scored tokens, and the natural-log probability of each given everything before it."""

    token_ids: list[int]
    token_logprobs: list[float]
    """IMPOSSIBLE stands for minus infinity (see ``to_finite``)."""
    num_cached_tokens: int = 0


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    """In the continuations' order."""

    scores: list[ContinuationScore]


class EncodeChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What does the model read for these messages?"""

    messages: list[Message]
    chat: ChatOptions = ChatOptions()


class EncodeChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    token_ids: list[int]


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    add_bos: bool = True
    """Put BOS first, where the model wants one."""
    allow_special: bool = True
    """The texts of special tokens stand for those tokens."""


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: list[int]


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token_ids: list[int]
    skip_special_tokens: bool = False


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class FlushCacheResponse(msgspec.Struct, frozen=True, kw_only=True):
    num_tokens: int
    """How many tokens' KV was dropped."""


_ERRORS: tuple[tuple[type[RametError], str, int], ...] = (
    (PromptTooLongError, "prompt_too_long", 400),
    (UnsupportedConstraintError, "unsupported_constraint", 400),
    (InvalidRequestError, "invalid_request", 400),
    (RequestAbortedError, "request_aborted", 499),
    (RequestFailedError, "request_failed", 500),
    (EngineDeadError, "engine_dead", 503),
    (RametError, "server_error", 500),
)
"""Of an error's kinds the first fits: type, code, HTTP status."""
ERROR_CODES = frozenset(code for _, code, _ in _ERRORS)
"""The codes by which ``as_error`` knows what was raised."""


def error_detail(error: RametError) -> ErrorDetail:
    """How the error is told over HTTP; ``as_error`` is the way back."""
    code, status = _described(error)
    return ErrorDetail(
        message=str(error),
        type="invalid_request_error" if status == 400 else "server_error",
        param=error.field if isinstance(error, InvalidRequestError) else None,
        code=code,
    )


def http_status(error: RametError) -> int:
    """400 for the caller's mistakes, 499 for an aborted request, 503 for a dead engine, else 500."""
    return _described(error)[1]


def as_error(detail: ErrorDetail) -> RametError:
    """The error that a detail told of, as an engine in this process would have raised it."""
    kind = next((kind for kind, code, _ in _ERRORS if code == detail.code), RequestFailedError)
    if issubclass(kind, InvalidRequestError):
        return kind(detail.message, field=detail.param)
    return kind(detail.message)


def encode_event(event: GenerateEvent) -> bytes:
    """The event as JSON, on one line."""
    return msgspec.json.encode(
        msgspec.structs.replace(
            event,
            logprobs=finite_logprobs(event.logprobs),
            prompt_logprobs=finite_logprobs(event.prompt_logprobs),
        )
    )


def decode_event(data: bytes | str) -> GenerateEvent:
    """The event that ``encode_event`` wrote. Raises msgspec.ValidationError for anything else."""
    return from_finite_event(msgspec.json.decode(data, type=GenerateEvent))


def from_finite_event(event: GenerateEvent) -> GenerateEvent:
    """The event as it was before its log probabilities were made finite."""
    return msgspec.structs.replace(
        event,
        logprobs=_each(event.logprobs, from_finite),
        prompt_logprobs=_each(event.prompt_logprobs, from_finite),
    )


def finite_logprobs(logprobs: list[Position] | None) -> list[Position] | None:
    """As they may be written as JSON; for GenerateResponse, ``encode_event`` does it itself."""
    return _each(logprobs, to_finite)


def to_finite(logprob: float) -> float:
    return IMPOSSIBLE if logprob == -math.inf else logprob


def from_finite(logprob: float) -> float:
    return -math.inf if logprob <= IMPOSSIBLE else logprob


def _described(error: RametError) -> tuple[str, int]:
    return next((code, status) for kind, code, status in _ERRORS if isinstance(error, kind))


def _each(logprobs: list[Position] | None, change: Callable[[float], float]) -> list[Position] | None:
    """The logprobs with each number changed; the positions without any stay."""
    if logprobs is None:
        return None

    def changed(one: Logprob) -> Logprob:
        return Logprob(one.token_id, change(one.logprob), one.rank)

    return [
        one if one is None else TokenLogprobs(changed(one.chosen), tuple(changed(top) for top in one.top))
        for one in logprobs
    ]
