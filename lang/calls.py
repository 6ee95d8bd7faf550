"""The two calls that a branch makes of its prompt, and what becomes of the answers."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.lang.backends.base import AdaptedPrompt, GenerateDelta, Prompt, SelectRequest, SelectResult
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.lang.operations import Choose, Generate
from ramet.lang.reasoning import ReasoningSplitter
from ramet.lang.variables import Meta
from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams, TokenLogprobs

Show = Callable[[GenerateDelta], None]


class Answering(Protocol):
    """What a call is made of: a prompt, or what stands for one during the call. See Prompt for the methods."""

    def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]: ...

    async def select(self, request: SelectRequest) -> SelectResult: ...


@dataclass(slots=True)
class Answer:
    """One answer as far as it has come."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    last: GenerateDelta | None = None
    reasonings: list[str] = field(default_factory=list)
    """As the server tells it apart from the text."""
    more: Meta = field(default_factory=dict)
    """What else there is to say about it."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasonings)

    def add(self, delta: GenerateDelta) -> None:
        self.texts.append(delta.text)
        self.reasonings.append(delta.reasoning)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *delta.logprobs]
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.last = delta

    def finish_reason(self) -> FinishReason:
        """Raises GenerationError where the answer did not end by itself."""
        reason = None if self.last is None else self.last.finish_reason
        match reason:
            case None:
                raise GenerationError("the backend's answer broke off without an end")
            case FinishReason.ABORT | FinishReason.ERROR:
                raise GenerationError(f"the backend ended the answer with {reason.value!r}")
            case FinishReason.STOP | FinishReason.LENGTH:
                return reason

    def meta(self, tag: ProgramTag) -> Meta:
        stop_reason = None if self.last is None else self.last.stop_reason
        stats = None if self.last is None else self.last.stats
        told: Meta = {} if self.last is None else dict(self.last.extra)
        if reasoning := self.reasoning:
            told["reasoning_content"] = reasoning
        return {
            **told,
            "finish_reason": self.finish_reason().value,
            "stop_reason": stop_reason,
            "token_ids": tuple(self.token_ids),
            "logprobs": None if self.logprobs is None else tuple(self.logprobs),
            "prompt_logprobs": self.prompt_logprobs,
            **_counts(stats, len(self.token_ids)),
            "branch": tag.branch,
            "step": tag.step,
            **self.more,
        }


def prepare(prompt: Prompt, operation: Generate | Choose) -> None:
    """Tells the prompt what its next answer is to be given with, besides the parameters."""
    if isinstance(operation, Generate) and operation.lora is not None:
        if not isinstance(prompt, AdaptedPrompt):
            raise UnsupportedError(f"{type(prompt).__name__} says that it has LoRA adapters, and takes none")
        prompt.use_adapter(operation.lora)


async def run_generate(prompt: Answering, operation: Generate, show: Show) -> str:
    """Settles the operation's variables; returns what the prompt has got. ``show`` sees each increment of it.

    Whatever is raised from here is the operation's failure.
    """
    params = operation.params
    answers = [Answer() for _ in range(params.n)]
    splitter = None if operation.reasoning is None else ReasoningSplitter(operation.reasoning[0])
    stream = prompt.generate(params, tag=operation.tag, priority=operation.priority)
    try:
        async for delta in stream:
            answers[delta.index].add(delta)
            if params.n == 1:
                stream_out(operation, splitter, delta)
                show(delta)
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    settle(operation, splitter, answers)
    return answers[0].text if params.n == 1 else ""


async def run_select(prompt: Answering, operation: Choose) -> str:
    """Settles the operation's variable; returns the option that the prompt has got."""
    request = operation.request
    result = await prompt.select(request)
    operation.variable.add_text(result.option)
    meta: Meta = {
        "choices": request.options,
        "index": result.index,
        "scores": result.scores,
        "token_logprobs": result.token_logprobs,
        **_counts(result.stats, 0),
        "branch": request.tag.branch,
        "step": request.tag.step,
    }
    operation.variable.finish(result.option, meta)
    return result.option


def stream_out(operation: Generate, splitter: ReasoningSplitter | None, delta: GenerateDelta) -> None:
    """Shows an increment to whoever reads the operation's variables as they grow."""
    meta: Meta = {}
    if delta.token_ids:
        meta["token_ids"] = delta.token_ids
    if delta.logprobs is not None:
        meta["logprobs"] = delta.logprobs
    if splitter is None or operation.reasoning is None:
        operation.variable.add_text(delta.text, meta)
        return
    if delta.reasoning:
        splitter.leave_out()
    reasoning, text = splitter.feed(delta.text)
    operation.reasoning[1].add_text(delta.reasoning + reasoning)
    operation.variable.add_text(text, meta)


def settle(operation: Generate, splitter: ReasoningSplitter | None, answers: list[Answer]) -> None:
    """Settles the operation's variables. ``splitter``: what has split the text that was streamed."""
    metas = [answer.meta(operation.tag) for answer in answers]
    if operation.reasoning is None:
        values = [_parsed(operation, answer) for answer in answers]
    else:
        format, reasoning_variable = operation.reasoning
        if splitter is not None and len(answers) == 1:
            rest_of_reasoning, rest = splitter.finish()
            reasoning_variable.add_text(rest_of_reasoning)
            operation.variable.add_text(rest)
        parts = [_split(answer, ReasoningSplitter(format)) for answer in answers]
        values = [text for _, text in parts]
        reasonings = [answer.reasoning + part[0] for answer, part in zip(answers, parts, strict=True)]
        _finish(operation, reasoning_variable, reasonings, metas)
    _finish(operation, operation.variable, values, metas)


def _finish(operation: Generate, variable: Any, values: list[Any], metas: list[Meta]) -> None:
    if operation.params.n == 1:
        variable.finish(values[0], metas[0])
    else:
        variable.finish(values, metas)


def _split(answer: Answer, splitter: ReasoningSplitter) -> tuple[str, str]:
    if answer.reasoning:
        splitter.leave_out()
    first, last = splitter.feed(answer.text), splitter.finish()
    return first[0] + last[0], first[1] + last[1]


def _parsed(operation: Generate, answer: Answer) -> object:
    text = answer.text
    try:
        return operation.parse(text)
    except ValueError as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        cut = ""
        if answer.finish_reason() is FinishReason.LENGTH:
            cut = f"; it was cut at max_tokens={operation.params.max_tokens}, raise that"
        raise GenerationError(f"the answer {shown!r} is not what was asked for: {error}{cut}") from error


def _counts(stats: RequestStats | None, num_tokens: int) -> Meta:
    return {
        "prompt_tokens": None if stats is None else stats.num_prompt_tokens,
        "cached_tokens": None if stats is None else stats.num_cached_tokens,
        "completion_tokens": num_tokens if stats is None else stats.num_output_tokens,
        "stats": stats,
    }
