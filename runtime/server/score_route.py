"""/v1/score: how probable each label is behind a query and an item, as SGLang has it.

That is what a causal model can honestly say of a pair. A relevance of two texts, as cross-encoders give it
under the same route (``text_1``, ``text_2``), it cannot: that is refused by name.
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ramet.runtime.engine import Score
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, RametError
from ramet.runtime.server.body import convert
from ramet.runtime.server.errors import bad_request, deadline_exceeded, openai_error
from ramet.runtime.server.responding import CLIENT_GONE, while_connected
from ramet.runtime.server.shared_fields import IGNORED
from ramet.runtime.server.state import ServerState, json_response, state_of, tenant_of

PAIR_FIELDS = ("text_1", "text_2", "queries", "documents", "data_1", "data_2")
PAIRS_REMEDY = (
    "this model generates text and was not trained to judge how two texts belong together: give query, items "
    "and label_token_ids (how probable each label is behind them), use POST /score for the log probability of "
    "texts behind a prompt, or compare vectors of /v1/embeddings"
)
MAX_LABELS = 1024
_RENAMED = {"prompts": "items", "continuations": "label_token_ids"}


class ScoringFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SGLang's parameters, and below ramet's own."""

    query: str | list[int]
    items: str | list[str | list[int]]
    """Each is scored behind the query; texts where the query is one, else token ids."""
    label_token_ids: list[int]
    """The tokens whose probability is wanted as what comes next."""
    apply_softmax: bool = False
    """Among the labels alone, so that an item's scores add up to 1; else of the whole vocabulary."""
    item_first: bool = False
    """The query stands behind the item."""
    model: str | None = None
    cache_salt: str = ""
    priority: int = 0
    timeout: float | None = None
    program: ProgramTag = ProgramTag()


RECORDS = (ScoringFields,)


async def score_labels(request: Request) -> Response:
    """POST /v1/score"""
    state = state_of(request)
    body = _without_pairs(await state.read(request))
    fields = convert(body, ScoringFields)
    state.check_model(fields.model)
    try:
        prompts = _prompts(fields)
        _check(state, fields, prompts)
        timeout = min(state.config.request_timeout, fields.timeout or state.config.request_timeout)
        gateway, num_labels = state.gateway, len(fields.label_token_ids)
        with gateway.room(len(prompts)), gateway.traced_score(fields.program, num_labels):
            found = await while_connected(request, _scored(request, state, fields, prompts, timeout))
    except RametError as error:
        raise openai_error(error, _RENAMED) from error
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    prompt_tokens = sum(num_tokens for num_tokens, _ in found)
    return json_response(
        {
            "object": "scoring",
            "model": fields.model or state.model,
            "scores": [_probabilities(scores, fields.apply_softmax) for _, scores in found],
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens, "completion_tokens": 0},
        }
    )


def _without_pairs(body: Mapping[str, Any]) -> dict[str, Any]:
    for name in PAIR_FIELDS:
        if name in body:
            raise bad_request(
                f"{name} is not supported: {PAIRS_REMEDY}", param=name, code="unsupported_parameter"
            )
    return {name: value for name, value in body.items() if name not in IGNORED}


def _prompts(fields: ScoringFields) -> list[Any]:
    items: list[Any] = [fields.items] if isinstance(fields.items, str) else list(fields.items)
    prompts: list[Any] = []
    for index, item in enumerate(items):
        if isinstance(item, str) is not isinstance(fields.query, str):
            kind = "a text" if isinstance(fields.query, str) else "a list of token ids"
            raise InvalidRequestError(
                f"items[{index}] must be {kind}, as the query is; give both in one form", field="items"
            )
        # mypy cannot see that both are of one kind.
        query: Any = fields.query
        prompts.append(item + query if fields.item_first else query + item)
    return prompts


def _check(state: ServerState, fields: ScoringFields, prompts: Sequence[Any]) -> None:
    if not prompts:
        raise InvalidRequestError("items is empty; give at least one", field="items")
    if not 1 <= len(fields.label_token_ids) <= MAX_LABELS:
        raise InvalidRequestError(
            f"label_token_ids has {len(fields.label_token_ids)} entries; it must have 1 to {MAX_LABELS}",
            field="label_token_ids",
        )
    if fields.timeout is not None and not 0 < fields.timeout <= 1e7:
        raise InvalidRequestError(
            f"timeout is {fields.timeout}; it must be a number of seconds above 0", field="timeout"
        )
    state.gateway.check_size(len(prompts))
    for prompt in prompts:
        state.prompt_size.check(prompt, "items")


async def _scored(
    request: Request, state: ServerState, fields: ScoringFields, prompts: Sequence[Any], timeout: float
) -> list[tuple[int, list[Score]]]:
    """Of each prompt how many tokens it has, and its labels' scores."""
    salt = tenant_of(request).salted(fields.cache_salt)

    async def one(prompt: Any) -> tuple[int, list[Score]]:
        token_ids = prompt
        if isinstance(prompt, str):
            token_ids = await asyncio.to_thread(
                state.engine.tokenizer.encode, prompt, add_bos=True, allow_special=True
            )
        scores = await state.engine.ascore(
            token_ids,
            [[label] for label in fields.label_token_ids],
            tag=fields.program,
            priority=fields.priority,
            cache_salt=salt,
        )
        return len(token_ids), scores

    try:
        async with asyncio.timeout(timeout):
            return await _together([one(prompt) for prompt in prompts])
    except TimeoutError:
        raise deadline_exceeded(timeout) from None


async def _together(
    work: Sequence[Coroutine[Any, Any, tuple[int, list[Score]]]],
) -> list[tuple[int, list[Score]]]:
    """All results, in order; the first error cancels what still runs."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _probabilities(scores: Sequence[Score], apply_softmax: bool) -> list[float]:
    found = [math.exp(score.logprob) for score in scores]
    if not apply_softmax:
        return found
    best = max(score.logprob for score in scores)
    if best == -math.inf:
        # None of the labels can come: none is more probable than another.
        return [1.0 / len(scores)] * len(scores)
    weights = [math.exp(score.logprob - best) for score in scores]
    return [weight / sum(weights) for weight in weights]
