"""Recording what a backend answers to a file, and replaying it without the backend.

The file has one JSON document a line: first the backend's capabilities, then one for each thing that was asked,
with the prompt, the question and the answer. A replay finds an answer by prompt and question; who asks, and in
what order, does not matter. What a prompt's text and messages are is written down wherever a template has its
say, whether anybody asks or not: a replay has no template.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import msgspec

from ramet.lang import errors
from ramet.lang.backends.base import (
    AdaptedPrompt,
    Capabilities,
    GenerateDelta,
    IdentifiedPrompt,
    Prompt,
    SelectRequest,
    SelectResult,
    TellingPrompt,
    ToolCall,
    ToolOffer,
    ToolPrompt,
)
from ramet.lang.backends.chosen import AnyBackend, as_backend
from ramet.lang.backends.transcript import Transcript, TranscriptPrompt
from ramet.lang.errors import GenerationError, ProgramError, UnsupportedError
from ramet.runtime import protocol
from ramet.runtime.protocol import (
    InvalidRequestError,
    ProgramTag,
    RametError,
    SamplingParams,
)

FORMAT = "ramet recording 1"


class RecordingBackend:
    """Asks another backend and writes down what it answers; the file begins anew. Closing it closes both, but
    no engine: that is used as everywhere where a backend is asked for.
    """

    def __init__(self, backend: AnyBackend, path: str | Path) -> None:
        self._backend = as_backend(backend)
        self._file: TextIO = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._written: set[str] = set()
        self._write({"format": FORMAT, "capabilities": msgspec.to_builtins(self.capabilities)})

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return RecordingPrompt(self, self._backend.prompt(cache_salt=cache_salt), Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        await self._backend.prefill([item.inner for item in prompts if isinstance(item, RecordingPrompt)])

    async def flush_cache(self) -> None:
        await self._backend.flush_cache()

    async def server_info(self) -> dict[str, object]:
        return await self._backend.server_info()

    async def aclose(self) -> None:
        self._file.close()
        await self._backend.aclose()

    def record(self, question: "Question", answer: Mapping[str, Any]) -> None:
        self._write({**question.fields, **answer})

    def record_once(self, question: "Question", answer: Mapping[str, Any]) -> None:
        """For what has the same answer whenever it is asked; that may be after the recording was closed."""
        if question.key not in self._written and not self._file.closed:
            self._written.add(question.key)
            self.record(question, answer)

    def _write(self, document: Mapping[str, Any]) -> None:
        # Whole lines at once, so that a recording that breaks off can be replayed as far as it goes.
        self._file.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()


class Question:
    """Something that was asked of a prompt. ``key`` is equal for equal questions to equal prompts."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = {name: fields[name] for name in ("ask", "prompt", "options")}
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        self.key = hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def of(cls, kind: str, transcript: Transcript, options: Mapping[str, Any] | None = None) -> "Question":
        """kind: generate, select, text, messages, or state (both)."""
        return cls({"ask": kind, "prompt": _merged(transcript), "options": dict(options or {})})

    @classmethod
    def shown(cls, kind: str, transcript: Transcript) -> "Question":
        """text, messages or state, which tell of the tools that were offered."""
        return cls.of(kind, transcript, {"told": list(transcript.told)} if transcript.told else None)

    @classmethod
    def generate(
        cls, transcript: Transcript, params: SamplingParams, offer: ToolOffer | None = None
    ) -> "Question":
        options = msgspec.to_builtins(params, str_keys=True)
        if offer is not None:
            options["tools"] = msgspec.to_builtins(offer)
        if transcript.adapter is not None:
            options["lora"] = transcript.adapter
        return cls.of("generate", transcript, options)

    @classmethod
    def select(cls, transcript: Transcript, request: SelectRequest) -> "Question":
        options = msgspec.to_builtins(request)
        return cls.of("select", transcript, {k: v for k, v in options.items() if k not in ("tag", "priority")})


class RecordingPrompt:
    """A prompt of another backend, with a transcript to know it by."""

    def __init__(self, backend: RecordingBackend, inner: Prompt, transcript: Transcript) -> None:
        self.inner = inner
        self._backend = backend
        self._transcript = transcript
        self._offer: ToolOffer | None = None
        self._tellings: tuple[tuple[object, tuple[str, ...]], ...] = ()
        """What calls so far told of tools: streams that began at one of them go on telling that."""

    def append_text(self, text: str) -> None:
        self.inner.append_text(text)
        self._transcript.append_text(text)

    def begin_role(self, role: str) -> None:
        self.inner.begin_role(role)
        self._transcript.begin_role(role)
        self._record_state()

    def end_role(self, role: str) -> None:
        self.inner.end_role(role)
        self._transcript.end_role(role)
        self._record_state()

    def append_image(self, data_url: str) -> None:
        self.inner.append_image(data_url)
        self._transcript.append_image(data_url)

    def offer_tools(self, offer: ToolOffer) -> None:
        self._with_tools().offer_tools(offer)
        self._offer = offer
        self._transcript.tell_of(offer)

    def append_tool_calls(self, calls: Sequence[ToolCall]) -> None:
        self._with_tools().append_tool_calls(calls)
        self._transcript.append_tool_calls(calls)

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        self._with_tools().append_tool_results(results)
        self._transcript.append_tool_results(results)
        self._record_state()

    def use_adapter(self, name: str) -> None:
        if not isinstance(self.inner, AdaptedPrompt):
            raise UnsupportedError(f"{self._backend.capabilities.name} has no LoRA adapters")
        self.inner.use_adapter(name)
        self._transcript.adapter = name

    def _with_tools(self) -> ToolPrompt:
        if not isinstance(self.inner, ToolPrompt):
            raise UnsupportedError(f"{self._backend.capabilities.name} has no tools")
        return self.inner

    def fork(self) -> "RecordingPrompt":
        fork = RecordingPrompt(self._backend, self.inner.fork(), self._transcript.fork())
        fork._tellings = self._tellings
        return fork

    def text(self) -> str:
        text = self.inner.text()
        self._backend.record_once(Question.shown("text", self._transcript), {"text": text})
        return text

    def told(self) -> tuple[object, tuple[str, ...]]:
        inner = self.inner.told() if isinstance(self.inner, TellingPrompt) else None
        return inner, self._transcript.told

    def text_telling(self, told: object) -> str:
        assert isinstance(told, tuple)
        inner, names = told
        text = self.inner.text_telling(inner) if isinstance(self.inner, TellingPrompt) else self.inner.text()
        self._backend.record_once(Question.shown("text", replace(self._transcript, told=names)), {"text": text})
        return text

    def messages(self) -> list[dict[str, object]]:
        messages = self.inner.messages()
        self._backend.record_once(Question.shown("messages", self._transcript), {"messages": messages})
        return messages

    def _record_state(self) -> None:
        try:
            state: dict[str, Any] = {"text": self.inner.text(), "messages": self.inner.messages()}
        except Exception as error:
            # A template that refuses the turns: whoever asks for the text is told.
            state = {"error": _described(error)}
        self._backend.record_once(Question.shown("state", self._transcript), state)
        if "error" in state or not isinstance(self.inner, TellingPrompt):
            return
        for inner, names in self._tellings:
            if names != self._transcript.told:
                told = Question.shown("state", replace(self._transcript, told=names))
                self._backend.record_once(told, {**state, "text": self.inner.text_telling(inner)})

    def _begin_call(self) -> None:
        now = self.told()
        if all(now[1] != names for _, names in self._tellings):
            self._tellings += (now,)
        self._record_state()

    def identity(self) -> Hashable:
        """Where the other backend's prompt has none: one that no other prompt has."""
        return self.inner.identity() if isinstance(self.inner, IdentifiedPrompt) else object()

    async def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        offer, self._offer = self._offer, None
        self._begin_call()
        question = Question.generate(self._transcript, params, offer)
        self._transcript.adapter = None
        deltas: list[GenerateDelta] = []
        try:
            async for delta in self.inner.generate(params, tag=tag, priority=priority):
                deltas.append(delta)
                yield delta
        except Exception as error:
            # It is answered to whoever asked; here it is only written down.
            self._backend.record(question, {"deltas": msgspec.to_builtins(deltas), "error": _described(error)})
            raise
        self._backend.record(question, {"deltas": msgspec.to_builtins(deltas)})
        if params.n == 1:
            self._transcript.append_text("".join(delta.text for delta in deltas))
            self._transcript.append_tool_calls([call for delta in deltas for call in delta.tool_calls])
            self._record_state()

    async def select(self, request: SelectRequest) -> SelectResult:
        self._begin_call()
        question = Question.select(self._transcript, request)
        try:
            result = await self.inner.select(request)
        except Exception as error:
            self._backend.record(question, {"error": _described(error)})
            raise
        self._backend.record(question, {"result": msgspec.to_builtins(result)})
        self._transcript.append_text(result.option)
        self._record_state()
        return result


class ReplayBackend:
    """Answers from a recording. What was asked several times is answered in that order, then from the start.

    Raises:
        InvalidRequestError: the file cannot be read or is no recording.
        UnsupportedError: a program asks what was not recorded.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._positions: dict[str, int] = {}
        self._capabilities = self._load()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return TranscriptPrompt(ReplayAnswers(self), Transcript())

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """There is no cache."""

    async def flush_cache(self) -> None:
        """There is no cache."""

    async def server_info(self) -> dict[str, object]:
        return {"backend": "replay", "path": str(self._path), "num_questions": len(self._answers)}

    async def aclose(self) -> None:
        """The file was read at the beginning."""

    def answer(self, question: Question) -> dict[str, Any]:
        answers = self._answers.get(question.key)
        if answers is None:
            asked = question.fields["ask"]
            end = "".join(content for _, content in question.fields["prompt"])[-60:]
            raise UnsupportedError(
                f"the recording {self._path} has no {asked} after a prompt that ends with {end!r} with these "
                f"options: {json.dumps(question.fields['options'], ensure_ascii=False)[:200]}; record the "
                "program again"
            )
        position = self._positions.get(question.key, 0)
        self._positions[question.key] = position + 1
        return answers[position % len(answers)]

    def known(self, question: Question) -> dict[str, Any] | None:
        """Of what has one answer: that, where it was recorded."""
        answers = self._answers.get(question.key)
        return None if answers is None else answers[0]

    def _load(self) -> Capabilities:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
            head, *documents = [json.loads(line) for line in lines]
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']!r}, not {FORMAT!r}")
            for document in documents:
                self._answers.setdefault(Question(document).key, []).append(document)
            return msgspec.convert(head["capabilities"], Capabilities)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequestError(f"{self._path} is not a recording: {error}", field="path") from None


class ReplayAnswers:
    """Answers from a recording."""

    def __init__(self, backend: ReplayBackend) -> None:
        self._backend = backend

    def text_of(self, transcript: Transcript) -> str:
        """As recorded; text that was said behind that is appended as it is."""
        question = Question.shown("text", transcript)
        if (known := self._backend.known(question)) is not None:
            return str(known["text"])
        state, more = self._state_of(transcript, question)
        return f"{state['text']}{more}"

    def messages_of(self, transcript: Transcript) -> list[dict[str, object]]:
        question = Question.shown("messages", transcript)
        known = self._backend.known(question)
        state, more = (known, "") if known is not None else self._state_of(transcript, question)
        messages: list[dict[str, object]] = [dict(message) for message in state["messages"]]
        if more and transcript.role is not None:
            messages[-1]["content"] = f"{messages[-1]['content']}{more}"
        return messages

    def _state_of(self, transcript: Transcript, question: Question) -> tuple[dict[str, Any], str]:
        """The last state that was recorded on the way to this one, and the text that was said since. Raises
        what was recorded; and UnsupportedError for ``question`` where there is none."""
        pieces = list(transcript.pieces)
        more: list[str] = []
        while True:
            state = self._backend.known(Question.shown("state", replace(transcript, pieces=pieces)))
            if state is not None:
                _raise_recorded(state)
                return state, "".join(reversed(more))
            if not pieces or pieces[-1].kind != "text":
                return self._backend.answer(question), ""
            more.append(pieces.pop().content)

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        answer = self._backend.answer(Question.generate(transcript, params, offer))
        for delta in msgspec.convert(answer["deltas"], list[GenerateDelta]):
            await asyncio.sleep(0)
            yield delta
        _raise_recorded(answer)

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        answer = self._backend.answer(Question.select(transcript, request))
        _raise_recorded(answer)
        return msgspec.convert(answer["result"], SelectResult)


def _merged(transcript: Transcript) -> list[list[str]]:
    """[kind, content] of the pieces; texts that follow one another are one, however they were said."""
    merged: list[list[str]] = []
    for piece in transcript.pieces:
        if merged and piece.kind == "text" == merged[-1][0]:
            merged[-1][1] += piece.content
        else:
            merged.append([piece.kind, piece.content])
    return merged


def _described(error: Exception) -> dict[str, str]:
    """A program's error without its place, which whoever replays it has again."""
    message = error.message if isinstance(error, ProgramError) else str(error)
    return {"type": type(error).__name__, "message": message}


def _raise_recorded(answer: Mapping[str, Any]) -> None:
    """The error that was recorded: of the same type where it is one of ramet's, else a GenerationError, which
    a program that runs has of it."""
    if "error" not in answer:
        return
    name, message = answer["error"]["type"], answer["error"]["message"]
    for module in (protocol, errors):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, RametError):
            raise kind(message)
    raise GenerationError(f"{name}: {message}")
