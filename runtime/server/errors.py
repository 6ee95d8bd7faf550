"""What a client is told when something goes wrong: OpenAI's or Anthropic's error body and the right status."""

import msgspec
from starlette.responses import Response

from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError, RametError
from ramet.runtime.protocol.wire import ErrorBody, ErrorDetail, error_detail, http_status

MAX_MESSAGE_CHARS = 1000
"""A client's own input comes back in messages; a small request must not get a huge answer."""

ANTHROPIC_ROUTES = "/v1/messages"
"""What is asked below it is answered in Anthropic's form."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class HttpError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, detail: ErrorDetail, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail
        self.headers = headers or {}


def bad_request(
    message: str, *, param: str | None = None, code: str | None = None, status: int = 400
) -> HttpError:
    return HttpError(status, ErrorDetail(message=message, type="invalid_request_error", param=param, code=code))


def unauthorized() -> HttpError:
    detail = ErrorDetail(
        message="a valid API key is needed; send it as `Authorization: Bearer KEY`",
        type="invalid_request_error",
        code="invalid_api_key",
    )
    return HttpError(401, detail, {"www-authenticate": "Bearer"})


def model_not_found(model: str, served: str) -> HttpError:
    return bad_request(
        f"the model {model[:200]!r} is not served here; this server has {served!r}",
        param="model",
        code="model_not_found",
        status=404,
    )


def overloaded(retry_after: int) -> HttpError:
    detail = ErrorDetail(
        message=f"the server's queue is full; try again in {retry_after} s",
        type="rate_limit_error",
        code="queue_full",
    )
    return HttpError(429, detail, {"retry-after": str(retry_after)})


def too_many_programs(limit: int, retry_after: int) -> HttpError:
    detail = ErrorDetail(
        message=f"{limit} programs run, which is the server's limit (--max-programs); try again in "
        f"{retry_after} s",
        type="rate_limit_error",
        code="too_many_programs",
    )
    return HttpError(429, detail, {"retry-after": str(retry_after)})


def draining() -> HttpError:
    detail = ErrorDetail(
        message="the server is shutting down and takes no new requests", type="server_error", code="draining"
    )
    return HttpError(503, detail, {"retry-after": "5"})


def deadline_exceeded(seconds: float) -> HttpError:
    detail = ErrorDetail(
        message=f"the request did not finish within {seconds:g} s; ask for fewer tokens, or for more time",
        type="server_error",
        code="deadline_exceeded",
    )
    return HttpError(504, detail)


def cut_by_shutdown() -> HttpError:
    detail = ErrorDetail(
        message="the server shut down before the answer was finished", type="server_error", code="draining"
    )
    return HttpError(503, detail)


def native_error(error: RametError) -> HttpError:
    """As the native routes tell it: ``wire.as_error`` is the way back."""
    return HttpError(http_status(error), error_detail(error))


def openai_error(error: RametError, renamed: dict[str, str] | None = None) -> HttpError:
    """As OpenAI's routes tell it. ``renamed``: our names of parameters -> what the client called them."""
    status = http_status(error)
    detail = error_detail(error)
    if isinstance(error, PromptTooLongError):
        detail = msgspec.structs.replace(detail, code="context_length_exceeded")
    elif isinstance(error, InvalidRequestError) and detail.code == "invalid_request":
        detail = msgspec.structs.replace(detail, code="invalid_value")
    ours = detail.param or ""
    # What has no field and is not the client's mistake (an abort, an engine that died) belongs to none.
    theirs = (renamed or {}).get(ours) if ours or status == 400 else None
    if theirs is not None:
        message = detail.message
        if message.startswith(f"{ours} "):
            message = theirs + message[len(ours) :]
        detail = msgspec.structs.replace(detail, param=theirs, message=message)
    return HttpError(status, detail)


def internal_error() -> HttpError:
    """What a fault of ours is answered with; the cause goes to the log, not to the client."""
    detail = ErrorDetail(
        message="the server failed to process the request; its log says why", code="internal_error"
    )
    return HttpError(500, detail)


def error_body(error: HttpError) -> bytes:
    detail = error.detail
    if len(detail.message) > MAX_MESSAGE_CHARS:
        detail = msgspec.structs.replace(detail, message=detail.message[: MAX_MESSAGE_CHARS - 3] + "...")
    # A lone surrogate in a message would make the encoder fail.
    message = detail.message.encode("utf-8", "replace").decode()
    param = None if detail.param is None else detail.param[:200].encode("utf-8", "replace").decode()
    return msgspec.json.encode(ErrorBody(error=msgspec.structs.replace(detail, message=message, param=param)))


def anthropic_body(error: HttpError) -> bytes:
    """An error in Anthropic's form."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.status, other)
    message = error.detail.message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def error_response(error: HttpError, path: str) -> Response:
    """``path``: what was asked for; it says whose form the body has."""
    is_anthropics = path == ANTHROPIC_ROUTES or path.startswith(f"{ANTHROPIC_ROUTES}/")
    body = anthropic_body(error) if is_anthropics else error_body(error)
    return Response(body, error.status, error.headers, "application/json")
