"""LiteLLM: programs on whatever the litellm package reaches."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ramet.lang.backends.base import (
    Capabilities,
    GenerateDelta,
    Prompt,
    SelectRequest,
    SelectResult,
    ToolOffer,
)
from ramet.lang.backends.openai_flavours import Flavour
from ramet.lang.backends.openai_request import Addressee, generation
from ramet.lang.backends.openai_stream import ChunkReader
from ramet.lang.backends.spelled_select import spelled_select
from ramet.lang.backends.transcript import Answers, Transcript, TranscriptPrompt
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, SamplingParams

FLAVOUR = Flavour(
    name="openai", grammars=frozenset({"json_schema", "choice", "regex"}), takes_bare_tool_messages=False
)

Acompletion = Callable[..., Awaitable[Any]]
"""As litellm.acompletion: keyword arguments of OpenAI's API in, with ``stream=True`` an async iterator of
chunks out."""


class LiteLLM(Answers):
    """Programs on a model that litellm reaches, by its chat completions.

    litellm itself refuses a parameter that the model's provider does not have, unless it is told to drop it. A
    select lets the model spell one of the options.

    Args:
        model: as litellm calls it, such as ``mistral/mistral-small-latest``.
        api_key, base_url: for litellm; without them it reads the provider's environment variables.
        timeout: seconds, of a whole call.
        max_retries: how often litellm sends a failed request again.
        extra_body: further arguments of ``acompletion``; None takes one out.
        acompletion: who is called; without it the installed package's.

    Raises:
        InvalidRequestError: the package is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 5,
        extra_body: Mapping[str, Any] | None = None,
        acompletion: Acompletion | None = None,
    ) -> None:
        extra = {
            "api_key": api_key,
            "base_url": base_url,
            "timeout": timeout,
            "num_retries": max_retries,
            **(extra_body or {}),
        }
        self._acompletion = acompletion or _installed()
        self._whom = Addressee(f"litellm with model {model!r}", model, FLAVOUR, True, extra)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=self._whom.name,
            grammars=FLAVOUR.grammars,
            sampling_fields=FLAVOUR.sampling_fields,
            select=True,
            images=True,
            tools=True,
            text_completion=False,
        )

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        """Raises UnsupportedError for a salt: what a provider caches is not known here."""
        if cache_salt:
            raise UnsupportedError(f"{self._whom.name} has no cache_salt; leave it out")
        return TranscriptPrompt(self, Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Providers are not told what comes: nothing is computed ahead."""

    async def flush_cache(self) -> None:
        """Raises UnsupportedError: there is no way to say it."""
        raise UnsupportedError(f"{self._whom.name} cannot be told to drop its cache")

    async def server_info(self) -> dict[str, object]:
        return {"backend": self._whom.name}

    async def aclose(self) -> None:
        """litellm's connections are its own: there is nothing to close."""

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        """Raises GenerationError with what litellm raises as its cause."""
        asked = generation(self._whom, transcript, params, tag=tag, priority=priority, offer=offer)
        reader = ChunkReader(self._whom.name, params.n, asked.reading)
        chunks: Any = None
        try:
            chunks = await self._acompletion(**asked.body)
            async for chunk in chunks:
                for delta in reader.read(_plain(chunk)):
                    yield delta
                if reader.is_over:
                    break
        except GenerationError:
            raise
        except Exception as error:
            # The boundary to the package: its errors are classes of its own, of many kinds.
            raise GenerationError(f"{self._whom.name}: {type(error).__name__}: {error}") from error
        finally:
            if (close := getattr(chunks, "aclose", None)) is not None:
                await close()
        for delta in reader.finish():
            yield delta

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        return await spelled_select(self, self._whom.name, transcript, request, tells_logprobs=False)


def _plain(chunk: Any) -> dict[str, Any]:
    """A chunk as litellm's records give it, or as it is."""
    document: dict[str, Any] = chunk if isinstance(chunk, dict) else chunk.model_dump()
    return document


def _installed() -> Acompletion:
    try:
        module: Any = import_module("litellm")
    except ImportError as error:
        raise InvalidRequestError(
            "litellm is not installed; pip install 'ramet[litellm]', or give acompletion", field="acompletion"
        ) from error
    acompletion: Acompletion = module.acompletion
    return acompletion
