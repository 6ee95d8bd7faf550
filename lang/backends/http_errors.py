"""What servers say when they refuse or fail, as errors."""

from typing import Any

import msgspec

from ramet.lang.errors import GenerationError

MAX_SHOWN = 2000


def answered_error(name: str, status: int | None, body: bytes | str) -> GenerationError:
    """The error of an answer: names the server, the status, the field at fault and the server's message.

    Knows the bodies of OpenAI (``{"error": {"message", "type", "param", "code"}}``), of servers that leave the
    outer object out, of Anthropic and of FastAPI (``{"detail": ...}``); anything else is shown as it is. status
    None: the error came in the middle of a stream.
    """
    detail = error_fields(body)
    said = [f"field {detail['param']!r}"] if detail.get("param") else []
    said += [f"code {detail['code']!r}"] if detail.get("code") not in (None, "", status, str(status)) else []
    where = f" ({', '.join(said)})" if said else ""
    how = "failed while it answered" if status is None else f"answered with status {status}"
    return GenerationError(f"{name} {how}: {_shown(detail.get('message'))}{where}{_remedy(status)}")


def error_fields(body: bytes | str) -> dict[str, Any]:
    """message, and type, param and code where the body has them."""
    text = body if isinstance(body, str) else body.decode(errors="replace")
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {"message": text}
    fields = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(fields, dict) and "detail" in fields and "message" not in fields:
        return {**fields, "message": fields["detail"]}
    return fields if isinstance(fields, dict) and "message" in fields else {"message": fields}


def _shown(message: object) -> str:
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    text = text.strip() or "it says nothing of why"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def _remedy(status: int | None) -> str:
    match status:
        case 401 | 403:
            return "; check api_key"
        case 404:
            return "; check model and base_url"
        case _:
            return ""
