"""ScoreRequests: requests that score continuations, and the scheduler's requests that each of them is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from ramet.runtime.engine.score_trie import ScoreTrie
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    RequestStats,
    SamplingParams,
    TextOutput,
    TokenOutput,
)
from ramet.runtime.scheduler.batch import Targets

SCORING = SamplingParams(max_tokens=1, temperature=0.0)
"""One token has to be sampled for a request to end; it is thrown away."""


@dataclass(slots=True)
class _Scored:
    """A request as far as it has come."""

    source: GenerateInput
    trie: ScoreTrie
    parts: list[str]
    """Of each path its request's id."""
    logprobs: dict[str, list[list[float]]] = field(default_factory=dict)
    """Of the parts that have ended."""
    stats: list[RequestStats] = field(default_factory=list)


class ScoreRequests:
    """Used by the engine's thread. Invariant: a request is in here from ``open`` until its last part was
    pushed, or until ``close``."""

    def __init__(self) -> None:
        self._requests: dict[str, _Scored] = {}
        self._owners: dict[str, str] = {}
        """By part."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def owner(self, part_id: str) -> str | None:
        """The request that this one of the scheduler's is a part of."""
        return self._owners.get(part_id)

    def open(self, source: GenerateInput) -> Iterator[tuple[GenerateInput, Targets]]:
        """The scheduler's requests for a request, one for each path of its trie, and what each is to tell. They
        go on from one another's prefixes, which the radix cache has.

        Raises:
            InvalidRequestError: it says how to generate, or a continuation is empty, or its id is in use.
        """
        if source.request_id in self._requests:
            raise InvalidRequestError(
                f"request_id {source.request_id!r} belongs to a running request; choose another one",
                field="request_id",
            )
        if source.params != SCORING:
            raise InvalidRequestError(
                "a request with continuations generates nothing: leave its sampling parameters out",
                field="params",
            )
        if not all(source.continuations):
            raise InvalidRequestError(
                "a continuation is empty; each needs at least one token", field="continuations"
            )
        trie = ScoreTrie(source.continuations)
        parts = [f"{source.request_id}#score{index}" for index in range(len(trie.paths))]
        self._requests[source.request_id] = _Scored(source, trie, parts)
        self._owners |= dict.fromkeys(parts, source.request_id)
        num_prompt = len(source.token_ids)
        for part_id, path in zip(parts, trie.paths, strict=True):
            token_ids = [*source.token_ids, *path.token_ids]
            part = msgspec.structs.replace(source, request_id=part_id, token_ids=token_ids, continuations=[])
            yield part, Targets(num_prompt - 1 + path.first, path.targets)

    def push(self, output: TokenOutput, stats: RequestStats) -> TextOutput | None:
        """A part has ended by itself; the whole, if it was the last one."""
        request_id = self._owners.pop(output.request_id)
        scored = self._requests[request_id]
        scored.logprobs[output.request_id] = output.target_logprobs or []
        scored.stats.append(stats)
        if len(scored.logprobs) < len(scored.parts):
            return None
        del self._requests[request_id]
        return TextOutput(
            request_id=request_id,
            finish_reason=FinishReason.LENGTH,
            scores=scored.trie.scores([scored.logprobs[part] for part in scored.parts]),
            stats=_together(scored),
        )

    def close(self, request_id: str) -> list[str]:
        """Forget a request. Returns its parts, of which some may have ended."""
        parts = self._requests.pop(request_id).parts
        for part in parts:
            self._owners.pop(part, None)
        return parts

    def check_integrity(self, live: Callable[[str], bool]) -> None:
        """Raises AssertionError where a part that has not ended is not ``live``."""
        lost = [part for part in self._owners if not live(part)]
        assert not lost, f"parts of requests that nobody is at: {lost[:5]}"


def _together(scored: _Scored) -> RequestStats:
    """Prompt tokens are the prompt's and those of the trie that have to be known; what of them was not computed
    came from the cache."""
    stats = scored.stats
    num_prompt = len(scored.source.token_ids) + scored.trie.num_computed_nodes
    num_computed = sum(one.num_prompt_tokens - one.num_cached_tokens for one in stats)
    return RequestStats(
        num_prompt_tokens=num_prompt,
        num_cached_tokens=max(0, num_prompt - num_computed),
        num_steps=max(one.num_steps for one in stats),
        num_preemptions=sum(one.num_preemptions for one in stats),
        num_overtaken=max(one.num_overtaken for one in stats),
        queue_time=max(one.queue_time for one in stats),
        ttft=max((one.ttft for one in stats if one.ttft is not None), default=None),
        e2e=max((one.e2e for one in stats if one.e2e is not None), default=None),
    )
