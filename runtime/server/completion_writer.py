"""CompletionWriter: the increments of text completions as OpenAI's chunks."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import TokenLogprobs
from ramet.runtime.server.chat_writer import AnswerHead
from ramet.runtime.server.gateway import Answers
from ramet.runtime.server.token_logprobs import (
    CompletionLogprobs,
    CompletionLogprobsWriter,
    answer_logprobs,
)
from ramet.runtime.server.usage import Usage, UsageCounter
from ramet.runtime.tokenizer import Tokenizer


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """The prompt's place times n plus the answer's."""
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a stream, and the whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    """Of chunks null but in the last, where it was asked for."""


class CompletionWriter:
    """The prompt's echo comes first where it was asked for, once for each answer; the finish reason comes last.

    ``without_answer``: the one token that was generated is not the client's: only the echo is.
    """

    def __init__(
        self,
        answers: Answers,
        head: AnswerHead,
        tokenizer: Tokenizer,
        *,
        echoed: Sequence[str] | None,
        without_answer: bool,
        include_usage: bool,
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._echoed = echoed
        self._prompts = answers.prompt_token_ids
        self._n = answers.job.params.n
        self._wants_prompt_logprobs = answers.job.params.prompt_logprobs is not None
        self._without_answer = without_answer
        self._include_usage = include_usage
        self._counter = UsageCounter(prompt_tokens=sum(map(len, self._prompts)), answers_per_prompt=self._n)
        self._prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
        self._logprobs: dict[int, CompletionLogprobsWriter] = {}
        self._held: dict[int, list[Increment]] = {}
        """By prompt: answers that began before the prompt's log probabilities came with the first one."""

    def push(self, increment: Increment) -> list[Completion]:
        self._counter.add(increment)
        prompt = increment.index // self._n
        if increment.prompt_logprobs is not None:
            self._prompt_logprobs[prompt] = increment.prompt_logprobs
        if self._wants_prompt_logprobs and prompt not in self._prompt_logprobs:
            self._held.setdefault(prompt, []).append(increment)
            return []
        ready = [increment, *self._held.pop(prompt, [])]
        return [self._chunk(choice) for one in ready for choice in self._choices(one)]

    def end(self) -> list[Completion]:
        if not self._include_usage:
            return []
        return [msgspec.structs.replace(self._chunk(), usage=self._usage())]

    def encode(self, chunk: Completion) -> bytes:
        return msgspec.json.encode(chunk)

    def fold(self, chunks: Sequence[Completion]) -> Completion:
        choices = [choice for chunk in chunks for choice in chunk.choices]
        folded = [
            _fold([choice for choice in choices if choice.index == index])
            for index in sorted({choice.index for choice in choices})
        ]
        return msgspec.structs.replace(chunks[0], choices=folded, usage=self._usage())

    def _choices(self, increment: Increment) -> Iterator[CompletionChoice]:
        index = increment.index
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobsWriter(self._tokenizer)
            if self._echoed is not None:
                prompt = index // self._n
                yield CompletionChoice(
                    index=index, text=self._echoed[prompt], logprobs=self._echoed_logprobs(index, prompt)
                )
        if not self._without_answer and (increment.text or increment.logprobs):
            entries = answer_logprobs(increment)
            logprobs = None
            if increment.logprobs is not None:
                logprobs = self._logprobs[index].write(increment.token_ids[: len(entries)], entries)
            yield CompletionChoice(index=index, text=increment.text, logprobs=logprobs)
        if increment.finish_reason is not None:
            reason = "length" if self._without_answer else increment.finish_reason.value
            yield CompletionChoice(index=index, text="", finish_reason=reason)

    def _echoed_logprobs(self, index: int, prompt: int) -> CompletionLogprobs | None:
        if not self._wants_prompt_logprobs:
            return None
        return self._logprobs[index].write(self._prompts[prompt], self._prompt_logprobs[prompt])

    def _usage(self) -> Usage:
        usage = self._counter.usage()
        if not self._without_answer:
            return usage
        return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)

    def _chunk(self, *choices: CompletionChoice) -> Completion:
        head = self._head
        return Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=list(choices),
            usage=None if self._include_usage else UNSET,
        )


def _fold(parts: Sequence[CompletionChoice]) -> CompletionChoice:
    logprobs: CompletionLogprobs | None = None
    for part in parts:
        if part.logprobs is not None:
            logprobs = logprobs or CompletionLogprobs()
            logprobs.extend(part.logprobs)
    return CompletionChoice(
        index=parts[0].index,
        text="".join(part.text for part in parts),
        logprobs=logprobs,
        finish_reason=parts[-1].finish_reason,
    )
