"""What LocalBackend needs of whatever computes: token ids in, token ids out. Engines in this process have it,
and so has the client of a ramet server.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams, TokenLogprobs
from ramet.runtime.tokenizer import Tokenizer


class Limits(Protocol):
    """The model, and what requests are checked against."""

    @property
    def model(self) -> str: ...

    @property
    def context_length(self) -> int: ...

    @property
    def kv_tokens(self) -> int: ...

    @property
    def grammars(self) -> tuple[str, ...]: ...


class TokenIncrement(Protocol):
    """How one answer goes on. Texts, ids and logprobs of one ``index`` concatenate."""

    @property
    def index(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def logprobs(self) -> list[TokenLogprobs] | None: ...

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None: ...

    @property
    def finish_reason(self) -> FinishReason | None: ...

    @property
    def stop_reason(self) -> int | str | None: ...

    @property
    def stats(self) -> RequestStats | None: ...


class TokenScore(Protocol):
    """How probable a continuation is."""

    @property
    def token_logprobs(self) -> list[float]: ...

    @property
    def logprob(self) -> float: ...

    @property
    def num_cached_tokens(self) -> int: ...


class TokenStream(AbstractAsyncContextManager[object], Protocol):
    """Iterates over increments; leaving its block aborts the request. Raises what became of a request that did
    not end by itself."""

    def __aiter__(self) -> AsyncIterator[TokenIncrement]: ...


class TokenEngine(Protocol):
    """Errors are those of ramet.EngineFace."""

    @property
    def info(self) -> Limits: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> TokenStream: ...

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> object:
        """A batch, to its end."""
        ...

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> Sequence[TokenScore]: ...

    def flush_cache(self) -> int:
        """Waits; the number of tokens freed."""
        ...

    def stats(self) -> object:
        """Waits; a record of counters."""
        ...

    def close(self) -> None: ...
