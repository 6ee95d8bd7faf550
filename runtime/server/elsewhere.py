"""Routes that clients know from elsewhere and that are not here: why, and what to do instead."""

from collections.abc import Iterable

_NOTHING_IS_TRAINED = (
    "nothing is trained here; serve the weights that you have trained with `ramet serve --model`"
)
_NOTHING_IS_KEPT = "no file is kept here; send what the model is to read in messages"
_TEXT_ONLY = "the model reads and writes text alone"
_NO_THREADS = (
    "conversations are not kept by name; /v1/responses with store and previous_response_id goes on from one"
)

_FAMILIES = {
    "/v1/agents": "run agents at the client, against /v1/chat/completions or /v1/responses",
    "/v1/assistants": _NO_THREADS,
    "/v1/audio": _TEXT_ONLY,
    "/v1/batches": "send requests at once: they queue and are batched here",
    "/v1/chatkit": _NO_THREADS,
    "/v1/containers": "no code is run here; tools run at the client",
    "/v1/conversations": _NO_THREADS,
    "/v1/evals": "run them at the client, against /v1/chat/completions or /v1/responses",
    "/v1/files": _NOTHING_IS_KEPT,
    "/v1/fine_tuning": _NOTHING_IS_TRAINED,
    "/v1/images": _TEXT_ONLY,
    "/v1/live": _TEXT_ONLY,
    "/v1/messages/batches": "send requests at once: they queue and are batched here",
    "/v1/moderations": "no model for that is served; ask the model, by `choice` or /v1/score",
    "/v1/organization": "there are no accounts here; keys are those of --api-key-file",
    "/v1/realtime": _TEXT_ONLY,
    "/v1/rerank": "POST /v1/score says how probable labels are behind a query and an item",
    "/v1/skills": _NOTHING_IS_KEPT,
    "/v1/threads": _NO_THREADS,
    "/v1/uploads": _NOTHING_IS_KEPT,
    "/v1/vector_stores": "no file is kept here; POST /v1/embeddings gives the vectors",
    "/v1/videos": _TEXT_ONLY,
}
"""What begins so, by the longest that fits."""
_METHODS = {
    "/v1/chat/completions": "completions are not kept; /v1/responses with store are",
    "/v1/models": "models are not created or deleted over HTTP",
}
"""Of routes that are here, what their other methods, and what stands behind them, would be for."""


def reason(path: str) -> str | None:
    """Why a route of others is not here; None: it is nobody's that we know."""
    path = path.rstrip("/")
    known = [one for one in (*_FAMILIES, *_METHODS) if path == one or path.startswith(one + "/")]
    if not known:
        return None
    longest = max(known, key=len)
    return _FAMILIES.get(longest) or _METHODS[longest]


def is_elsewhere(path: str) -> bool:
    """Whether no method of it is here, whatever route it may look like."""
    path = path.rstrip("/")
    return any(path == one or path.startswith(one + "/") for one in _FAMILIES)


def served(routes: Iterable[str]) -> str:
    """Those under /v1 in one line, for whoever asked for another one."""
    ours = sorted({route for route in routes if route.startswith("/v1/") and "{" not in route})
    return f"served are {', '.join(ours)}; GET /openapi.json describes all"
