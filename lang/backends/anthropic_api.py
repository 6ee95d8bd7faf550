"""Anthropic: programs on Anthropic's Messages API."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.lang.backends.anthropic_request import MESSAGES_ROUTE, Correspondent, SharedStarts, letter
from ramet.lang.backends.anthropic_stream import MessageReader
from ramet.lang.backends.base import (
    Capabilities,
    GenerateDelta,
    Prompt,
    SelectRequest,
    SelectResult,
    ToolOffer,
)
from ramet.lang.backends.connected import ConnectedBackend
from ramet.lang.backends.http_client import Connection, HttpClient, Server
from ramet.lang.backends.http_errors import answered_error
from ramet.lang.backends.spelled_select import spelled_select
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.backends.transcript import Answers, Transcript, TranscriptPrompt
from ramet.lang.errors import UnsupportedError
from ramet.runtime.env import variable
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, SamplingParams

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2023-06-01"


class Anthropic(ConnectedBackend):
    """Programs on a server that speaks Anthropic's Messages API, streamed.

    What the API does not have (seeds, logprobs, penalties, several answers, ...) is refused by name before
    anything is sent. Schemas, choices and patterns are enforced by its structured outputs; a select lets the
    model spell one of the options, so the scores of the others are not known, and minus infinity.

    Text in front of a ``gen`` in the assistant's turn is sent as the turn's beginning; not every model takes
    that, and one that does not says so.

    Args:
        model: as the API calls it.
        api_key: without one ANTHROPIC_API_KEY, for the server of base_url's default.
        base_url: without the version; without one ANTHROPIC_BASE_URL, else Anthropic's.
        default_max_tokens: for calls with ``max_tokens=None``, since the API wants a number.
        thinking: as in the API, such as ``{"type": "enabled", "budget_tokens": 2048}``; the thinking is the
            variable's ``reasoning_content``.
        prompt_caching: marks what branches and turns have in common, so that it is computed (and paid) once.
        extra_body: fields that are put into each request as they are; None takes one out.
        connection: timeout, retries and how many requests run at once.

    Raises:
        InvalidRequestError: there is no key.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        default_max_tokens: int = 8192,
        thinking: Mapping[str, Any] | None = None,
        prompt_caching: bool = True,
        extra_body: Mapping[str, Any] | None = None,
        connection: Connection | None = None,
    ) -> None:
        url = (base_url or variable("ANTHROPIC_BASE_URL") or ANTHROPIC_URL).rstrip("/")
        if api_key is None and (base_url is None or url == ANTHROPIC_URL):
            # Never another server's business.
            api_key = variable("ANTHROPIC_API_KEY")
        if api_key is None and url == ANTHROPIC_URL:
            raise InvalidRequestError("api_key is missing; give it, or set ANTHROPIC_API_KEY", field="api_key")
        if default_max_tokens < 1:
            raise InvalidRequestError(
                f"default_max_tokens is {default_max_tokens!r}; it must be at least 1",
                field="default_max_tokens",
            )
        name = f"the server at {url} with model {model!r}"
        headers = {"anthropic-version": API_VERSION} | ({} if api_key is None else {"x-api-key": api_key})
        server = Server(name, url, headers, connection or Connection())
        client = HttpClient(server, lambda status, body: answered_error(name, status, body))
        whom = Correspondent(
            name, model, default_max_tokens, thinking, prompt_caching, SharedStarts(), dict(extra_body or {})
        )
        self._answers = _Answers(client, whom)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=self._answers.whom.name,
            grammars=frozenset({"json_schema", "choice", "regex"}),
            sampling_fields=frozenset({"temperature", "top_p", "top_k", "stop", "stop_regex"}),
            select=True,
            images=True,
            tools=True,
            text_completion=False,
            hoists=True,
        )

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        """Raises UnsupportedError for a salt: caches are kept apart by API key."""
        if cache_salt:
            raise UnsupportedError(f"{self._answers.whom.name} has no cache_salt; leave it out")
        return TranscriptPrompt(self._answers, Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Nothing is computed ahead, which the API has no way to ask for; but from now on requests mark where
        they have these prompts' turns behind them, so that the first one's computation serves the others."""
        for prompt in prompts:
            if isinstance(prompt, TranscriptPrompt):
                self._answers.whom.shared_starts.add(prompt.transcript)

    async def flush_cache(self) -> None:
        """Raises UnsupportedError: the API has no way to say it."""
        raise UnsupportedError(f"{self._answers.whom.name} cannot be told to drop its cache")

    async def server_info(self) -> dict[str, object]:
        """The model, as the server describes it."""
        whom = self._answers.whom
        return {"backend": whom.name, "model": await self._answers.client.get(f"/v1/models/{whom.model}")}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._answers.client.aclose()


@dataclass(frozen=True, slots=True)
class _Answers(Answers):
    """What answers for prompts."""

    client: HttpClient
    whom: Correspondent

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        if priority:
            raise UnsupportedError(f"{self.whom.name} has no priorities; leave priority={priority} out")
        asked = letter(self.whom, transcript, params, offer)
        reader = MessageReader(self.whom.name, asked)
        async with self.client.events(MESSAGES_ROUTE, asked.body, _is_end) as events:
            async for event in events:
                for delta in reader.push(event):
                    yield delta
                if reader.is_over:
                    break
        yield reader.finish()

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        return await spelled_select(self, self.whom.name, transcript, request, tells_logprobs=False)


def _is_end(event: ServerSentEvent) -> bool:
    return event.event == "message_stop"
