"""From a request's bytes to checked records, within limits, with errors that say where."""

import asyncio
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.protocol.nesting import json_is_nested_within
from ramet.runtime.server.errors import HttpError, bad_request, native_error

T = TypeVar("T", bound=msgspec.Struct)

LARGE_BODY = 1 << 20
"""Bytes; decoding more takes milliseconds, for which the event loop must not wait."""

MAX_SEPARATORS = 1 << 20
"""Commas and opening brackets of a body, about as many as it has values. A decoder holds up every other thread
until it is done: seconds for the ten million values that 24 MB can be, and for a long text next to nothing."""

MAX_ENTRIES = {"choice": 1 << 16, "logit_bias": 1 << 16, "metadata": 16, "stop": 64}
"""Of fields that are looked through one by one while the event loop waits; of metadata as many as OpenAI's."""

_WHERE = re.compile(r"(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


async def read_object(request: Request, *, max_bytes: int, max_depth: int, seconds: float) -> dict[str, Any]:
    """The body, a JSON object.

    Raises:
        HttpError: 415 for another content type (a page in a browser can send those to any server), 413 for too
        many bytes, 408 where they take more than ``seconds`` to come, 400 for what is no JSON object or is
        nested too deeply.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise bad_request(
            f"the content type is {content_type[:100]!r}; send JSON with `Content-Type: application/json`",
            code="unsupported_content_type",
            status=415,
        )
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, max_bytes)
    except TimeoutError:
        refusal = bad_request(
            f"the body did not come within {seconds:g} s (--read-timeout)", code="body_timeout", status=408
        )
        # What is left of it would keep the connection open for as long as it trickles in.
        refusal.headers["connection"] = "close"
        raise refusal from None
    if len(body) > LARGE_BODY:
        return await asyncio.to_thread(_decode_object, body, max_depth)
    return _decode_object(body, max_depth)


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = bad_request(
        f"the body has more than {max_bytes} bytes, which is the server's limit (--max-body-bytes)",
        code="body_too_large",
        status=413,
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def _decode_object(body: bytes, max_depth: int) -> dict[str, Any]:
    if len(body) > MAX_SEPARATORS and sum(map(body.count, (b",", b"[", b"{"))) > MAX_SEPARATORS:
        raise bad_request(
            f"the body has more than {MAX_SEPARATORS} commas and brackets; send fewer values in one request",
            code="body_too_large",
            status=413,
        )
    if not json_is_nested_within(body, max_depth):
        raise _too_deep(max_depth)
    try:
        decoded = msgspec.json.decode(body)
    except RecursionError:  # where the limit was set higher than the decoder's own
        raise _too_deep(max_depth) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(decoded, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    _check_entries(decoded)
    return decoded


def _check_entries(body: Mapping[str, Any]) -> None:
    """Raises HttpError (400) for a field of more than MAX_ENTRIES, here or among the native parameters."""
    native = body.get("params")
    for fields in (body, native if isinstance(native, dict) else {}):
        for name, limit in MAX_ENTRIES.items():
            value = fields.get(name)
            if isinstance(value, dict | list) and len(value) > limit:
                raise bad_request(
                    f"{name} has {len(value)} entries; at most {limit} are taken",
                    param=name,
                    code="invalid_value",
                )


def convert(body: Mapping[str, Any], kind: type[T]) -> T:
    """The record that ``body`` is. Raises HttpError (400) that names the field."""
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _refusal(error, kind.__struct_fields__) from None


def split(body: Mapping[str, Any], *kinds: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The fields of ``body`` by the record that has them, so that several records share one object.

    Raises:
        HttpError: 400 for a field that none of them has.
    """
    known = [name for kind in kinds for name in kind.__struct_encode_fields__]
    for name in body:
        if name not in known:
            raise unknown_field(name, known)
    return [{name: body[name] for name in body if name in kind.__struct_encode_fields__} for kind in kinds]


def unknown_field(name: str, known: Sequence[str], hint: str = "") -> HttpError:
    near = difflib.get_close_matches(name[:100], known, n=1)
    hint = hint or (f"did you mean {near[0]!r}?" if near else "remove it")
    return bad_request(f"there is no parameter {name[:100]!r}; {hint}", param=name, code="unknown_parameter")


def _refusal(error: msgspec.ValidationError, known: Sequence[str]) -> HttpError:
    if isinstance(error.__cause__, InvalidRequestError):
        # Raised by a record of the protocol itself, with better words than the decoder's.
        return native_error(error.__cause__)
    match = _WHERE.fullmatch(str(error))
    text, path = (match["text"], match["path"] or "") if match else (str(error), "")
    path = path.lstrip(".")
    if unknown := _UNKNOWN.fullmatch(text):
        name = f"{path}.{unknown[1]}" if path else unknown[1]
        return unknown_field(name, [] if path else known)
    if missing := _MISSING.fullmatch(text):
        name = f"{path}.{missing[1]}" if path else missing[1]
        return bad_request(f"{name} is missing", param=name, code="missing_required_parameter")
    where = f"{path}: " if path else ""
    return bad_request(f"{where}{text[:1].lower()}{text[1:]}", param=path or None, code="invalid_type")


def _too_deep(max_depth: int) -> HttpError:
    return bad_request(
        f"the body is nested more than {max_depth} levels deep (--max-json-depth)", code="json_too_deep"
    )
