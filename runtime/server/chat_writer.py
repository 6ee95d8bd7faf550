"""ChatWriter: the increments of a conversation's answers as OpenAI's chunks."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import msgspec
from msgspec import UNSET

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason
from ramet.runtime.protocol.reasoning import ReasoningSplitter
from ramet.runtime.server.chat_chunks import (
    ChatChunk,
    ChatCompletion,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    FunctionDelta,
    ToolCallDelta,
    fold,
)
from ramet.runtime.server.chat_prompt import ChatPrompt
from ramet.runtime.server.gateway import Answers
from ramet.runtime.server.token_logprobs import answer_logprobs, content_logprobs
from ramet.runtime.server.tools.call_parser import (
    CallArguments,
    CallBegin,
    Content,
    ParserEvent,
    ToolCallParser,
)
from ramet.runtime.server.usage import Usage, UsageCounter
from ramet.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every chunk of one answer says."""

    id: str
    created: int
    model: str
    system_fingerprint: str = field(default_factory=lambda: f"ramet-{version('ramet')}")


@dataclass(slots=True)
class _Choice:
    """One answer as far as it has come."""

    splitter: ReasoningSplitter | None
    parser: ToolCallParser | None
    begun: bool = False
    num_calls: int = 0


class ChatWriter:
    """Reasoning is split off, tool calls are read out of the text, and the rest is content.

    The last chunk of an answer has its finish reason and nothing else, as OpenAI's has.
    """

    def __init__(
        self,
        answers: Answers,
        head: AnswerHead,
        prompt: ChatPrompt,
        tokenizer: Tokenizer,
        *,
        include_usage: bool,
    ) -> None:
        self._head = head
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._choices: dict[int, _Choice] = {}
        self._counter = UsageCounter(
            prompt_tokens=sum(map(len, answers.prompt_token_ids)), answers_per_prompt=answers.job.params.n
        )
        if prompt.reasoning is not None:
            self._counter.reasoning_tokens = 0

    def push(self, increment: Increment) -> list[ChatChunk]:
        self._counter.add(increment)
        choice = self._choices.get(increment.index)
        if choice is None:
            choice = self._choices[increment.index] = self._new_choice()
        deltas = [] if choice.begun else [Delta(role="assistant", content="")]
        choice.begun = True
        deltas += self._deltas(choice, increment)
        logprobs = self._logprobs(increment)
        # Log probabilities travel with the text of their tokens, or by themselves where that is held back.
        if logprobs is not None and logprobs.content and len(deltas) == 0:
            deltas.append(Delta(content=""))
        chunks = []
        for place, delta in enumerate(deltas):
            is_last = place == len(deltas) - 1
            chunks.append(self._chunk(increment.index, delta, logprobs=logprobs if is_last else None))
        if increment.finish_reason is not None:
            chunks.append(self._chunk(increment.index, Delta(), finish_reason=_finish(choice, increment)))
        return chunks

    def end(self) -> list[ChatChunk]:
        if not self._include_usage:
            return []
        return [msgspec.structs.replace(self._empty(), usage=self._counter.usage())]

    def usage(self) -> Usage:
        """Of all answers that have ended."""
        return self._counter.usage()

    def encode(self, chunk: ChatChunk) -> bytes:
        return msgspec.json.encode(chunk)

    def fold(self, chunks: Sequence[ChatChunk]) -> ChatCompletion:
        return fold(chunks, self._counter.usage())

    def _new_choice(self) -> _Choice:
        reasoning = self._prompt.reasoning
        return _Choice(None if reasoning is None else ReasoningSplitter(reasoning), self._prompt.call_parser())

    def _deltas(self, choice: _Choice, increment: Increment) -> list[Delta]:
        reasoning, text = "", increment.text
        is_end = increment.finish_reason is not None
        if choice.splitter is not None:
            reasoning, text = choice.splitter.feed(increment.text)
            if choice.splitter.in_reasoning and self._counter.reasoning_tokens is not None:
                self._counter.reasoning_tokens += len(increment.token_ids)
            if is_end:
                more_reasoning, more_text = choice.splitter.finish()
                reasoning, text = reasoning + more_reasoning, text + more_text
        deltas = [Delta(reasoning_content=reasoning)] if reasoning else []
        if choice.parser is None:
            return deltas + ([Delta(content=text)] if text else [])
        events = choice.parser.feed(text) + (choice.parser.finish() if is_end else [])
        for event in events:
            deltas += self._event_deltas(choice, event)
        return deltas

    def _event_deltas(self, choice: _Choice, event: ParserEvent) -> list[Delta]:
        match event:
            case Content(text):
                return [Delta(content=text)]
            case CallBegin(name):
                choice.num_calls += 1
                call = ToolCallDelta(
                    index=choice.num_calls - 1,
                    id=f"call_{secrets.token_hex(12)}",
                    type="function",
                    function=FunctionDelta(name=name),
                )
                return [Delta(tool_calls=[call])]
            case CallArguments(text):
                call = ToolCallDelta(index=choice.num_calls - 1, function=FunctionDelta(arguments=text))
                return [Delta(tool_calls=[call])]
            case _:
                return []

    def _logprobs(self, increment: Increment) -> ChoiceLogprobs | None:
        if increment.logprobs is None:
            return None
        return ChoiceLogprobs(content=content_logprobs(answer_logprobs(increment), self._tokenizer))

    def _chunk(
        self,
        index: int,
        delta: Delta,
        *,
        logprobs: ChoiceLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> ChatChunk:
        choice = ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return msgspec.structs.replace(self._empty(), choices=[choice])

    def _empty(self) -> ChatChunk:
        head = self._head
        return ChatChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[],
            usage=None if self._include_usage else UNSET,
        )


def _finish(choice: _Choice, increment: Increment) -> str:
    """A call that max_tokens cut is LENGTH: its arguments are not whole."""
    if increment.finish_reason is FinishReason.STOP and choice.num_calls:
        return "tool_calls"
    assert increment.finish_reason is not None
    return increment.finish_reason.value
