"""Answers of OpenAI's API as they come: chunks in, increments out."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ramet.lang.backends.answer_text import AnswerText, Reading
from ramet.lang.backends.base import GenerateDelta, ToolCall
from ramet.lang.backends.http_errors import answered_error
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import FinishReason, Logprob, RequestStats, TokenLogprobs

FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "eos_token": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
AS_IT_IS = Reading()
UNKNOWN_TOKEN = -1
"""The token id of a log probability whose token the server names by its text only."""


@dataclass(slots=True)
class _Call:
    """A tool call that comes in pieces."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Answer:
    """One of n answers as far as it has come."""

    text: AnswerText
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_tokens: int = 0
    refusal: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """As the server says them."""


class ChunkReader:
    """Reads the chunks of one streamed answer, chat or completion.

    What ends an answer comes before the usage, which its last increment carries: last increments are given out
    by ``finish``.
    """

    def __init__(self, name: str, n: int = 1, reading: Reading = AS_IT_IS) -> None:
        """name: of the server, for errors."""
        self._name = name
        self._is_wrapped = reading.wrapping is not None
        self._answers = [_Answer(AnswerText(name, reading)) for _ in range(n)]
        self._usage: dict[str, Any] | None = None
        self._started = time.monotonic()
        self._first: float | None = None
        self._extra: dict[str, Any] = {}

    @property
    def is_over(self) -> bool:
        """What follows is no part of any answer."""
        return all(answer.text.is_over for answer in self._answers)

    def push(self, data: str) -> list[GenerateDelta]:
        """The increments of one event's data.

        Raises:
            GenerationError: the server reports an error, or what it says is no chunk.
        """
        try:
            chunk = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise GenerationError(f"{self._name} sent an event that is no JSON: {data[:200]!r}") from error
        if not isinstance(chunk, dict) or "error" in chunk or chunk.get("object") == "error":
            raise answered_error(self._name, None, data)
        return self.read(chunk)

    def read(self, chunk: dict[str, Any]) -> list[GenerateDelta]:
        """The increments of one chunk."""
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        if chunk.get("system_fingerprint"):
            self._extra["system_fingerprint"] = chunk["system_fingerprint"]
        return [delta for choice in chunk.get("choices") or () for delta in self._read(choice)]

    def finish(self) -> list[GenerateDelta]:
        """The last increment of each answer. Raises GenerationError where one did not end by itself."""
        return [self._last(index, answer) for index, answer in enumerate(self._answers)]

    def _read(self, choice: dict[str, Any]) -> list[GenerateDelta]:
        index = choice.get("index") or 0
        if not 0 <= index < len(self._answers):
            raise GenerationError(f"{self._name} sent answer {index} of {len(self._answers)}")
        answer = self._answers[index]
        said = choice.get("delta") or {}
        text, reasoning = _texts(said.get("content", choice.get("text")))
        reasoning += said.get("reasoning_content") or said.get("reasoning") or ""
        answer.refusal += said.get("refusal") or ""
        for call in said.get("tool_calls") or ():
            self._add_call(answer, call)
        token_ids = tuple(choice.get("token_ids") or ())
        logprobs = self._logprobs(answer, choice.get("logprobs"))
        answer.num_tokens += len(token_ids)
        if choice.get("finish_reason"):
            self._end(answer, choice)
        if answer.text.is_over:
            return []
        text = answer.text.push(text)
        if self._is_wrapped:
            token_ids, logprobs = (), None
        if not (text or reasoning or token_ids or logprobs):
            return []
        if self._first is None:
            self._first = time.monotonic()
        return [
            GenerateDelta(text=text, token_ids=token_ids, logprobs=logprobs, reasoning=reasoning, index=index)
        ]

    def _end(self, answer: _Answer, choice: dict[str, Any]) -> None:
        reason = choice["finish_reason"]
        if reason == "content_filter":
            raise GenerationError(f"{self._name} ended the answer: its content filter was triggered")
        if reason not in FINISH_REASONS:
            raise GenerationError(f"{self._name} ended the answer with {reason!r}")
        answer.finish_reason = FINISH_REASONS[reason]
        stopped_by = choice.get("stop_reason", choice.get("matched_stop"))
        answer.stop_reason = stopped_by if isinstance(stopped_by, int | str) else None

    def _add_call(self, answer: _Answer, call: dict[str, Any]) -> None:
        position = call.get("index")
        known = answer.calls.setdefault(len(answer.calls) if position is None else position, _Call())
        function = call.get("function") or {}
        known.id = call.get("id") or known.id
        known.name += function.get("name") or ""
        arguments = function.get("arguments") or ""
        known.arguments += arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()

    def _logprobs(self, answer: _Answer, said: dict[str, Any] | None) -> tuple[TokenLogprobs, ...] | None:
        if not said:
            return None
        entries = said["content"] if "content" in said else completion_entries(said)
        if not entries:
            return None
        answer.logprobs += entries
        return tuple(map(token_logprobs, entries))

    def _last(self, index: int, answer: _Answer) -> GenerateDelta:
        if answer.finish_reason is None and not answer.text.is_over:
            raise GenerationError(f"{self._name} broke off its answer")
        if answer.refusal:
            raise GenerationError(f"the model refuses to answer: {answer.refusal}")
        text, finish_reason, stop_reason = answer.text.finish(
            answer.finish_reason or FinishReason.STOP, answer.stop_reason
        )
        calls = tuple(
            ToolCall(id=call.id or f"call_{position}", name=call.name, arguments=call.arguments or "{}")
            for position, call in sorted(answer.calls.items())
        )
        extra = dict(self._extra)
        if answer.logprobs:
            extra["logprobs_content"] = answer.logprobs
        return GenerateDelta(
            text=text,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            stats=self._stats(index, answer),
            index=index,
            tool_calls=calls,
            extra=extra,
        )

    def _stats(self, index: int, answer: _Answer) -> RequestStats:
        """The usage is of all answers together: where their tokens were not told one by one, the first answer
        has its output tokens. Times are the client's."""
        now = time.monotonic()
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details") or {}
        num_output = answer.num_tokens or len(answer.logprobs)
        if len(self._answers) == 1 or (not num_output and index == 0):
            num_output = usage.get("completion_tokens") or num_output
        return RequestStats(
            num_prompt_tokens=usage.get("prompt_tokens") or 0,
            num_cached_tokens=details.get("cached_tokens") or 0,
            num_output_tokens=num_output,
            ttft=None if self._first is None else self._first - self._started,
            e2e=now - self._started,
        )


def token_logprobs(entry: dict[str, Any]) -> TokenLogprobs:
    """From a token's entry in the form of chat completions. Ids are UNKNOWN_TOKEN where the server names tokens
    by their texts; a rank counts the more probable ones among those told."""
    tops = entry.get("top_logprobs") or []
    ranked = sorted(tops, key=lambda top: -top["logprob"])
    chosen = Logprob(
        _token_id(entry["token"]),
        entry["logprob"],
        sum(top["logprob"] > entry["logprob"] for top in ranked),
    )
    return TokenLogprobs(
        chosen,
        tuple(Logprob(_token_id(top["token"]), top["logprob"], rank) for rank, top in enumerate(ranked)),
    )


def completion_entries(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The four lists of text completions as entries in the form of chat completions. The first token of a
    prompt has no log probability: it is left out of the entry."""
    tokens: Sequence[str] = said.get("tokens") or ()
    values: Sequence[float | None] = said.get("token_logprobs") or ()
    tops: Sequence[dict[str, float] | None] = said.get("top_logprobs") or [None] * len(tokens)
    return [
        {
            "token": token,
            "logprob": value,
            "top_logprobs": [{"token": text, "logprob": one} for text, one in (top or {}).items()],
        }
        for token, value, top in zip(tokens, values, tops, strict=False)
    ]


def _texts(content: object) -> tuple[str, str]:
    """The answer's text and the reasoning in a chunk's content: a text, or parts as some servers send them."""
    if isinstance(content, str):
        return content, ""
    text = reasoning = ""
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "thinking":
            reasoning += _texts(part.get("thinking"))[0]
        else:
            text += part.get("text") or ""
    return text, reasoning


def _token_id(token: str) -> int:
    match = re.fullmatch(r"token_id:(\d+)", token)
    return UNKNOWN_TOKEN if match is None else int(match[1])
