"""Embeddings of prompts: what a causal model's output head reads at their last position, or on average."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ramet.runtime.engine import prompts as checks
from ramet.runtime.engine.calls import Call
from ramet.runtime.engine.intake import Ask, Intake, check_routing, make_call
from ramet.runtime.engine.results import Embedding, Output
from ramet.runtime.engine.score_requests import SCORING
from ramet.runtime.protocol import InvalidRequestError, RequestFailedError

POOLINGS = ("last", "mean")


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """One call a prompt."""

    calls: list[Call]
    is_batch: bool
    normalize: bool

    def embeddings(self, outputs: Sequence[Output], vectors: Sequence[list[float] | None]) -> list[Embedding]:
        """``vectors``: of each prompt, as the engine gave it."""
        found = []
        for output, vector in zip(outputs, vectors, strict=True):
            if vector is None:
                raise RequestFailedError("the engine ended a request without the embedding that it was to give")
            found.append(
                Embedding(
                    embedding=normalized(vector) if self.normalize else vector,
                    token_ids=output.prompt_token_ids,
                    num_cached_tokens=output.stats.num_cached_tokens,
                )
            )
        return found


def plan_embeddings(
    ask: Ask, pooling: str, normalize: bool, intake: Intake, new_id: Callable[[], str]
) -> EmbeddingPlan:
    """One request for each prompt.

    Raises:
        InvalidRequestError: the model gives no embeddings, there is no such pooling, or a prompt is wrong.
    """
    if not intake.info.embedding_size:
        raise InvalidRequestError(
            f"the model {intake.info.model!r} gives no embeddings: it runs through transformers' code, which "
            "keeps its hidden states; use a model of an architecture that is implemented here"
        )
    match pooling:
        case "last" | "mean":
            ask = replace(ask, pooling=pooling)
        case _:
            raise InvalidRequestError(
                f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}", field="pooling"
            )
    token_lists, is_batch = intake.encode(ask)
    tags = checks.resolve_tags(ask.tag, len(token_lists))
    check_routing(ask, tags)
    calls = [
        make_call(ask, new_id(), token_ids, SCORING, tag)
        for token_ids, tag in zip(token_lists, tags, strict=True)
    ]
    return EmbeddingPlan(calls, is_batch, normalize)


def normalized(vector: Sequence[float]) -> list[float]:
    """Of length 1; the zero vector as it is."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return [value / length for value in vector] if length else list(vector)
