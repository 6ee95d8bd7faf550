"""What a request cost, as OpenAI's ``usage`` says it."""

from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType

from ramet.runtime.engine import Increment


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Of models that reason."""


@dataclass(slots=True)
class UsageCounter:
    """Adds up the answers of one request. A prompt counts once, whatever its ``n``; so does what was cached."""

    prompt_tokens: int
    answers_per_prompt: int
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    """None: the model does not reason."""
    _cached: dict[int, int] = field(default_factory=dict)

    def add(self, increment: Increment) -> None:
        """Counts an answer when its last increment comes."""
        if increment.stats is None:
            return
        self.completion_tokens += increment.stats.num_output_tokens
        prompt, answer = divmod(increment.index, self.answers_per_prompt)
        if answer == 0:
            self._cached[prompt] = increment.stats.num_cached_tokens

    def usage(self) -> Usage:
        reasoning = self.reasoning_tokens
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
            completion_tokens_details=UNSET
            if reasoning is None
            else CompletionTokensDetails(reasoning_tokens=reasoning),
        )
