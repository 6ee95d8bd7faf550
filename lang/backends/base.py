"""The one seam between the language and whatever generates: a backend makes prompts, a prompt generates.

A ``Prompt`` is what one branch of a program has said so far. A branch appends to it and asks it to generate,
one operation after the other; ``fork`` gives a branch that goes on from the same point. How a prompt is kept is
the backend's business: token ids for an engine in this process, messages for a chat API, text for a fake.
"""

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams, TokenLogprobs


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. What it cannot is refused by name before anything is sent."""

    name: str
    """As error messages call it."""
    grammars: frozenset[str] = frozenset()
    """Tags of the GrammarSpec kinds that it enforces: choice, regex, json_schema, ebnf, structural_tag."""
    sampling_fields: frozenset[str] | None = None
    """SamplingParams fields that it honours besides max_tokens; None: all."""
    select: bool = False
    images: bool = False
    tools: bool = False
    lora: bool = False
    """A call may name a LoRA adapter that the server has loaded."""
    roles: bool = True
    """It has a chat template, or speaks messages."""
    text_completion: bool = True
    """It can go on from text outside any role."""
    repeatable: bool = False
    """The same prompt and parameters always give the same tokens, where nothing is drawn or with one seed."""
    hoists: bool = False
    """To be told ahead what the programs of a batch begin with saves it something. An engine that shares what
    calls begin with while it computes them has nothing of it, nor a server that cannot be told."""


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What the next answer may call."""

    tools: tuple[ToolSpec, ...]
    choice: str = "auto"
    """auto: the model calls or answers. required: it calls. none: it answers. Else the name of the tool that it
    calls."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made. ``arguments``: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class GenerateDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One increment; texts and token ids concatenate to the whole. The last one has a finish_reason."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """Of the prompt, on one of the increments, where they were asked for; see TokenOutput."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None
    index: int = 0
    """Which of n answers."""
    tool_calls: tuple[ToolCall, ...] = ()
    """On the last one: what the model calls, if tools were offered. How it spells it is no part of ``text``."""
    spelled: str | None = None
    """How the prompt's own text goes on, where that is another than ``text``: with calls, or with what the
    answer is wrapped in."""
    is_answer: bool = False
    """Where tools were offered: the text belongs to an answer, and no call can come any more. Where it is not
    known before the end, it is false."""
    reasoning: str = ""
    """How the model's reasoning goes on, where a server tells it apart from the answer; no part of ``text``."""
    extra: dict[str, object] = {}
    """On the last one: what else a server says of the answer, for the variable's meta."""


class SelectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Choose one of ``options`` as what comes next."""

    options: tuple[str, ...]
    normalization: str = "token_length"
    """token_length: mean log probability per token. greedy: token by token. unconditional: mean of log p minus
    log p without the prompt. sum: total log probability."""
    temperature: float = 0.0
    """0: the best. Above: an option is drawn with probability proportional to exp(score / temperature)."""
    seed: int | None = None
    tag: ProgramTag = ProgramTag()
    priority: int = 0


class SelectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen option and how all of them scored, in the options' order."""

    index: int
    option: str
    scores: tuple[float, ...]
    token_logprobs: tuple[tuple[float, ...], ...] = ()
    stats: RequestStats | None = None


class Prompt(Protocol):
    """What one branch has said so far. Not used by two tasks at once; ``fork`` for that.

    ``generate`` and ``select`` append what they produced to the prompt when they have ended.
    """

    def append_text(self, text: str) -> None: ...

    def begin_role(self, role: str) -> None:
        """role: system, user, assistant, tool or developer. Raises ProgramError inside another role."""
        ...

    def end_role(self, role: str) -> None: ...

    def append_image(self, data_url: str) -> None:
        """Raises UnsupportedError by the model's name where it takes text only."""
        ...

    def fork(self) -> "Prompt":
        """An independent prompt that begins with this one; costs no copy of the model's state."""
        ...

    def text(self) -> str:
        """Everything so far as the model reads it, template included."""
        ...

    def messages(self) -> list[dict[str, object]]:
        """The roles so far, as chat messages."""
        ...

    def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        """Continue the prompt. Closing the iterator early, or cancelling its task, aborts the request. With
        params.n > 1 the answers are told apart by ``index`` and none is appended."""
        ...

    async def select(self, request: SelectRequest) -> SelectResult: ...


@runtime_checkable
class IdentifiedPrompt(Prompt, Protocol):
    """A prompt that can be told from others without being rendered."""

    def identity(self) -> Hashable:
        """Equal for prompts of one backend that go on alike, whatever is asked of both from here on."""
        ...


@runtime_checkable
class TokenCounter(Protocol):
    """A backend that knows its model's tokens."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has, by itself; where it spells special tokens, these are meant."""
        ...


@runtime_checkable
class ToolPrompt(Prompt, Protocol):
    """A prompt of a backend whose capabilities say that it has tools."""

    def offer_tools(self, offer: ToolOffer) -> None:
        """The next ``generate``, in an open assistant's turn, may call these, each call with arguments that
        conform to its schema. From here on the model is told of them, wherever its prompt tells such things."""
        ...

    def append_tool_calls(self, calls: Sequence[ToolCall]) -> None:
        """Says in an open assistant's turn that it calls, as if the model had."""
        ...

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        """Ends the assistant's turn that called, says what the calls gave, and begins the assistant's next."""
        ...


@runtime_checkable
class AdaptedPrompt(Prompt, Protocol):
    """A prompt of a backend whose capabilities say that it has LoRA adapters."""

    def use_adapter(self, name: str) -> None:
        """The next ``generate`` is answered by the model with this adapter; an unknown one is its error."""
        ...


@runtime_checkable
class TellingPrompt(Prompt, Protocol):
    """A prompt whose text tells of tools before all that was said."""

    def told(self) -> object:
        """What it tells of now."""
        ...

    def text_telling(self, told: object) -> str:
        """``text``, but telling of what ``told`` returned at another time: tools that are offered later change
        a text that somebody has read already."""
        ...


class Backend(Protocol):
    """Makes prompts. One backend serves any number of programs at once."""

    @property
    def capabilities(self) -> Capabilities: ...

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        """An empty prompt."""
        ...

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Compute the prompts' prefixes ahead of their use, where the backend has a cache; else nothing."""
        ...

    async def flush_cache(self) -> None: ...

    async def server_info(self) -> dict[str, object]: ...

    async def aclose(self) -> None: ...
