"""OpenAI: programs on any server that speaks OpenAI's API."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from ramet.lang.backends.openai_flavours import Flavour, flavour_of, is_openai
from ramet.lang.backends.openai_request import COMPLETIONS_ROUTE, Addressee, generation, prompt
from ramet.lang.backends.openai_select import ECHO_NORMALIZATIONS, echo_fields, echo_result
from ramet.lang.backends.openai_stream import ChunkReader
from ramet.lang.backends.spelled_select import check_select, spelled_select
from ramet.lang.backends.sse import ServerSentEvent
from ramet.lang.backends.transcript import Answers, Transcript, TranscriptPrompt
from ramet.lang.errors import UnsupportedError
from ramet.runtime.env import variable
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, SamplingParams

OPENAI_URL = "https://api.openai.com/v1"
COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
"""Models of OpenAI's that complete text and do not chat."""


class OpenAI(ConnectedBackend):
    """Programs on a server that speaks OpenAI's API: chat completions and text completions, streamed.

    What the server does not honour is refused by name before anything is sent; what that is depends on its
    ``flavour``. Log probabilities name their tokens by ids where the server tells them (vllm); otherwise the
    ids are -1, and the variable's meta has ``logprobs_content`` with the tokens' texts.

    select: text completions of vllm, sglang and ramet score each option. Elsewhere the model spells one of them
    under a constraint, token by token: the scores of the others are then not known, and minus infinity.

    Args:
        model: as the server calls it.
        base_url: up to the version, as ``http://127.0.0.1:8000/v1``; without one OPENAI_BASE_URL, else
            OpenAI's.
        api_key: without one OPENAI_API_KEY.
        flavour: openai, vllm, sglang or ramet: what the server understands. Without one, what OpenAI's
            reference has.
        is_chat_model: True: prompts are messages. False: prompts are text. Without it, a prompt with roles is
            messages and one without is text; on OpenAI's own server the model decides.
        extra_body: fields that are put into each request as they are; None takes one out.
        connection: timeout, retries and how many requests run at once.

    Raises:
        InvalidRequestError: there is no such flavour, or no key and the server needs one.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        flavour: str | None = None,
        is_chat_model: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
        connection: Connection | None = None,
    ) -> None:
        url = (base_url or variable("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")
        self._flavour = flavour_of(flavour, url)
        if is_chat_model is None and self._flavour.needs_key:
            is_chat_model = model not in COMPLETION_MODELS
        self._is_chat = is_chat_model
        name = f"the server at {url} with model {model!r}"
        self._whom = Addressee(name, model, self._flavour, bool(is_chat_model), dict(extra_body or {}))
        if api_key is None and (base_url is None or is_openai(url)):
            # Never another server's business.
            api_key = variable("OPENAI_API_KEY")
        server = Server(name, url, _authorization(api_key, self._flavour), connection or Connection())
        self._client = HttpClient(server, lambda status, body: answered_error(name, status, body))
        self._capabilities = _capabilities(name, self._flavour, is_chat_model)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        """Raises UnsupportedError for a salt where the server keeps no prefixes apart."""
        if cache_salt and self._flavour.salt is None:
            raise UnsupportedError(f"{self._whom.name} has no cache_salt; leave it out")
        whom = replace(self._whom, cache_salt=cache_salt)
        return TranscriptPrompt(_Answers(self._client, whom, self._is_chat), Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Servers of this kind are not told what comes: nothing is computed ahead."""

    async def flush_cache(self) -> None:
        """Raises UnsupportedError: the API has no way to say it."""
        raise UnsupportedError(f"{self._whom.name} cannot be told to drop its cache")

    async def server_info(self) -> dict[str, object]:
        """The models that the server offers, as it describes them."""
        models = await self._client.get("/models")
        return {"backend": self._whom.name, "flavour": self._flavour.name, "models": models.get("data", models)}

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


@dataclass(frozen=True, slots=True)
class _Answers(Answers):
    """What answers for the prompts of one salt."""

    client: HttpClient
    whom: Addressee
    is_chat: bool | None
    """None: the transcript decides."""

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        whom = self._addressed(transcript)
        asked = generation(whom, transcript, params, tag=tag, priority=priority, offer=offer)
        reader = ChunkReader(whom.name, params.n, asked.reading)
        async with self.client.events(whom.route, asked.body, _is_end) as events:
            async for event in events:
                if _is_end(event):
                    continue
                for delta in reader.push(event.data):
                    yield delta
                if reader.is_over:
                    break
        for delta in reader.finish():
            yield delta

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        whom = self._addressed(transcript)
        if whom.is_chat:
            tells_logprobs = whom.flavour.name != "openai"
            return await spelled_select(self, whom.name, transcript, request, tells_logprobs=tells_logprobs)
        if not whom.flavour.echoes_logprobs:
            raise UnsupportedError(
                f"{whom.name} does not tell the log probabilities of a prompt, so it cannot select; use a chat "
                "model"
            )
        check_select(whom.name, request, ECHO_NORMALIZATIONS)
        text = prompt(whom, transcript)["prompt"]
        body = whom.body(echo_fields(text, request.options), tag=request.tag, priority=request.priority)
        answer = await self.client.post(COMPLETIONS_ROUTE, body)
        return echo_result(whom.name, text, request, answer)

    def _addressed(self, transcript: Transcript) -> Addressee:
        is_chat = self.is_chat
        if is_chat is None:
            is_chat = any(piece.kind != "text" for piece in transcript.pieces)
        return replace(self.whom, is_chat=is_chat, adapter=transcript.adapter)


def _is_end(event: ServerSentEvent) -> bool:
    return event.data == "[DONE]"


def _capabilities(name: str, flavour: Flavour, is_chat: bool | None) -> Capabilities:
    # OpenAI's own text completions have no constraints.
    is_bare = is_chat is False and flavour.name == "openai"
    return Capabilities(
        name=name,
        grammars=frozenset() if is_bare else flavour.grammars,
        sampling_fields=flavour.sampling_fields,
        select=is_chat is not False or flavour.echoes_logprobs,
        images=is_chat is not False,
        tools=is_chat is not False,
        lora=flavour.lora is not None,
        roles=is_chat is not False,
        text_completion=is_chat is not True,
    )


def _authorization(api_key: str | None, flavour: Flavour) -> dict[str, str]:
    if api_key is None and flavour.needs_key:
        raise InvalidRequestError("api_key is missing; give it, or set OPENAI_API_KEY", field="api_key")
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}
