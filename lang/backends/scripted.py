"""A backend whose answers are written down beforehand: for testing programs without a model."""

import asyncio
import json
import math
import random
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ramet.lang.backends.base import (
    Capabilities,
    GenerateDelta,
    Prompt,
    SelectRequest,
    SelectResult,
    ToolCall,
    ToolOffer,
)
from ramet.lang.backends.transcript import Answers, Transcript, TranscriptPrompt
from ramet.lang.errors import ProgramStructureError
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    GrammarSpec,
    JsonSchema,
    ProgramTag,
    Regex,
    RequestStats,
    SamplingParams,
)
from ramet.runtime.tokenizer import StopMatcher

EVERYTHING = Capabilities(
    name="the scripted backend",
    grammars=frozenset({"choice", "regex", "json_schema", "ebnf", "structural_tag"}),
    select=True,
    images=True,
    tools=True,
    lora=True,
    hoists=True,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer.

    text: what the model would go on to say; stops and max_tokens cut it as they would a model's.
    delay: seconds before it begins. token_delay: seconds before each token after the first.
    calls: the tools that it calls, as (name, arguments), where the gen offers them.
    error: raised after the text, or after the first ``fail_after`` tokens of it.
    """

    text: str = ""
    delay: float = 0.0
    token_delay: float = 0.0
    error: Exception | None = None
    fail_after: int | None = None
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """How a select's options score, by option; those left out score least."""

    by_option: Mapping[str, float]


Script = str | Reply | Scores | Exception | Callable[[str], "Script"] | Sequence["Script"]


@dataclass(slots=True)
class ScriptedCall:
    """What the backend was asked, and how it ended: running, finished, failed or cancelled."""

    kind: str
    prompt: str
    messages: list[dict[str, object]]
    tag: ProgramTag
    priority: int
    params: SamplingParams | None = None
    request: SelectRequest | None = None
    offer: ToolOffer | None = None
    lora: str | None = None
    state: str = "running"
    answer: str = ""

    @property
    def seed(self) -> int | None:
        options = self.params or self.request
        return None if options is None else options.seed


class ScriptedBackend:
    """Answers from a script, and remembers what it was asked in ``calls``.

    The script is
        a text, Reply, Scores (for a select) or exception: always that;
        a function of the prompt's text, which returns one of these;
        a list of these: one after the other, in the order in which the calls come;
        a dict from variables' names to any of these, "" for calls without a name and "*" for all others.

    A select takes the option that a text names, or scores as Scores says. A token is a word with the white
    space before it. A text that does not meet the call's regex, choice or JSON is the script's mistake, and an
    error.
    """

    def __init__(
        self,
        script: "Script | Mapping[str, Script]" = "ok",
        *,
        delay: float = 0.0,
        capabilities: Capabilities = EVERYTHING,
    ) -> None:
        self._script = script
        self._delay = delay
        self._capabilities = capabilities
        self._positions: dict[str, int] = {}
        self.calls: list[ScriptedCall] = []
        self.num_running = 0
        self.max_running = 0
        """The most calls that ran at once."""
        self.num_flushes = 0
        self.prefilled: list[str] = []
        """The texts of the prompts that were computed ahead."""

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return TranscriptPrompt(ScriptedAnswers(self), Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        self.prefilled += [prompt.text() for prompt in prompts]

    async def flush_cache(self) -> None:
        self.num_flushes += 1

    async def server_info(self) -> dict[str, object]:
        return {"backend": self._capabilities.name, "num_calls": len(self.calls)}

    async def aclose(self) -> None:
        """There is nothing to close."""

    def next_reply(self, variable: str, prompt: str) -> Reply | Scores:
        """What the script says to this call. Raises ProgramStructureError where it says nothing any more."""
        script: object = self._script
        key = "the script"
        if isinstance(script, Mapping):
            key = variable if variable in script else "*"
            if key not in script:
                raise ProgramStructureError(f"the script has no answer for {variable!r}; add it, or '*'")
            script = script[key]
        return self._resolve(key, script, prompt)

    def _resolve(self, key: str, script: object, prompt: str) -> Reply | Scores:
        match script:
            case str():
                return Reply(script, delay=self._delay)
            case Reply() | Scores():
                return script
            case Exception():
                return Reply(error=script, delay=self._delay)
            case list() | tuple():
                position = self._positions.get(key, 0)
                self._positions[key] = position + 1
                if position >= len(script):
                    raise ProgramStructureError(
                        f"{key} has {len(script)} answers, and is asked for one more; add it"
                    )
                return self._resolve(key, script[position], prompt)
            case _ if callable(script):
                return self._resolve(key, script(prompt), prompt)
            case _:
                raise ProgramStructureError(
                    f"{key} answers with {type(script).__name__}; give a text or a Reply"
                )


class ScriptedAnswers(Answers):
    """Answers from a backend's script."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        prompt = self.text_of(transcript)
        call = ScriptedCall(
            "generate",
            prompt,
            self.messages_of(transcript),
            tag,
            priority,
            params=params,
            offer=offer,
            lora=transcript.adapter,
        )
        with _recorded(self._backend, call):
            for index in range(params.n):
                reply = self._backend.next_reply(tag.variable, prompt)
                if isinstance(reply, Scores):
                    raise ProgramStructureError("the script answers a gen with Scores; give a text")
                calls = _tool_calls(reply, offer, len(self._backend.calls))
                async for delta in _deltas(reply, params, index, len(prompt.split())):
                    call.answer += delta.text
                    is_last = delta.finish_reason is not None
                    yield msgspec.structs.replace(delta, tool_calls=calls) if is_last and calls else delta

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        prompt = self.text_of(transcript)
        call = ScriptedCall(
            "select", prompt, self.messages_of(transcript), request.tag, request.priority, request=request
        )
        with _recorded(self._backend, call):
            reply = self._backend.next_reply(request.tag.variable, prompt)
            if isinstance(reply, Reply):
                await asyncio.sleep(reply.delay)
                if reply.error is not None:
                    raise reply.error
                if reply.text not in request.options:
                    raise ProgramStructureError(
                        f"the script selects {reply.text!r}, which is none of {list(request.options)}"
                    )
                reply = Scores({reply.text: 0.0})
            scores = tuple(reply.by_option.get(option, -100.0) for option in request.options)
            index = _choose(scores, request)
            call.answer = request.options[index]
            return SelectResult(index=index, option=call.answer, scores=scores)


def _tool_calls(reply: Reply, offer: ToolOffer | None, number: int) -> tuple[ToolCall, ...]:
    """The reply's calls. Raises ProgramStructureError where the model could not have made them."""
    names = () if offer is None or offer.choice == "none" else tuple(tool.name for tool in offer.tools)
    for name, _ in reply.calls:
        if name not in names:
            raise ProgramStructureError(
                f"the script calls {name!r}, and this gen offers {', '.join(names) or 'no tools'}"
            )
    if offer is not None and offer.choice not in ("auto", "none"):
        wanted = names if offer.choice == "required" else (offer.choice,)
        if not any(name in wanted for name, _ in reply.calls):
            raise ProgramStructureError(f"the script answers, and this gen must call {' or '.join(wanted)}")
    return tuple(
        ToolCall(id=f"call-{number}-{index}", name=name, arguments=json.dumps(arguments))
        for index, (name, arguments) in enumerate(reply.calls)
    )


@contextmanager
def _recorded(backend: ScriptedBackend, call: ScriptedCall) -> Iterator[None]:
    backend.calls.append(call)
    backend.num_running += 1
    backend.max_running = max(backend.max_running, backend.num_running)
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        call.state = "cancelled"
        raise
    except Exception:
        call.state = "failed"
        raise
    else:
        call.state = "finished"
    finally:
        backend.num_running -= 1


async def _deltas(
    reply: Reply, params: SamplingParams, index: int, num_prompt: int
) -> AsyncIterator[GenerateDelta]:
    """The reply's tokens, up to a stop or to max_tokens; the last increment says which."""
    tokens = re.findall(r"\s*\S+|\s+$", reply.text)
    limit = len(tokens) if params.max_tokens is None else params.max_tokens
    stops = StopMatcher(params.stop, params.stop_regex, include_stop=params.include_stop)
    await asyncio.sleep(reply.delay)
    text, num_tokens = "", 0
    stop_reason: int | str | None = None
    for number, token in enumerate(tokens[:limit]):
        if reply.error is not None and number == reply.fail_after:
            raise reply.error
        if number:
            await asyncio.sleep(reply.token_delay)
        token_id = zlib.crc32(token.encode())
        shown, stop_reason = stops.push(token, enabled=number + 1 >= params.min_tokens)
        num_tokens += 1
        if stop_reason is None and token_id in params.stop_token_ids and num_tokens >= params.min_tokens:
            shown, stop_reason = "", token_id
        text += shown
        yield GenerateDelta(text=shown, token_ids=(token_id,), index=index)
        if stop_reason is not None:
            break
    if reply.error is not None:
        raise reply.error
    rest = ""
    if stop_reason is None:
        rest, stop_reason = stops.flush()
    finish_reason = FinishReason.LENGTH if stop_reason is None and limit < len(tokens) else FinishReason.STOP
    if finish_reason is FinishReason.STOP and params.grammar is not None:
        _check_grammar(reply.text if stop_reason is None else text + rest, params.grammar)
    yield GenerateDelta(
        text=rest,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        stats=RequestStats(num_prompt_tokens=num_prompt, num_output_tokens=num_tokens),
        index=index,
    )


def _check_grammar(text: str, grammar: GrammarSpec) -> None:
    """Raises ProgramStructureError where a model under this constraint could not have said the text."""
    match grammar:
        case Regex(pattern):
            met = re.fullmatch(pattern, text) is not None
        case Choice(options):
            met = text in options
        case JsonSchema():
            met = _is_json(text)
        case _:
            met = True
    if not met:
        raise ProgramStructureError(f"the script says {text!r}, which does not meet {grammar}")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _choose(scores: Sequence[float], request: SelectRequest) -> int:
    if request.temperature == 0:
        return max(range(len(scores)), key=lambda index: scores[index])
    best = max(scores)
    weights = [math.exp((score - best) / request.temperature) for score in scores]
    return random.Random(request.seed).choices(range(len(scores)), weights)[0]
