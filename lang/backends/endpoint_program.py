"""A program that was sent whole to a ramet server, seen from here: the server's events answer its calls.

The branches run here as ever, and ask a TokenEngine that computes nothing: it gives what the server's run of
the same program got from the engine for the same call (see ``protocol.programs``).
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from ramet.lang.backends.base import GenerateDelta, ToolCall
from ramet.lang.backends.endpoint_engine import HttpEngine, RemoteScore, is_end
from ramet.lang.backends.http_client import HttpClient
from ramet.lang.backends.local import LocalBackend, LocalPrompt
from ramet.lang.backends.token_engine import TokenStream
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    ProgramTag,
    RequestFailedError,
    SamplingParams,
    programs,
    wire,
)
from ramet.runtime.tokenizer import Tokenizer

CallKey = tuple[str, int]
"""A call's branch and step."""
_EVENT = msgspec.json.Decoder(programs.ProgramEvent)


class SentToServer:
    """A SentProgram, and the TokenEngine of its run. On one event loop, but for its making."""

    def __init__(
        self,
        engine: HttpEngine,
        local: LocalBackend,
        program: programs.ProgramRequest,
        calls: Mapping[CallKey, str],
    ) -> None:
        """``calls``: which variable each call makes."""
        self.backend = local.on(self, SentPrompt)
        self._engine = engine
        self._request = program
        self._variables = calls
        self._numbers: dict[str, int] = defaultdict(int)
        self._answers: dict[tuple[str, int], _Answer] = {}
        self._end: Exception | None = None
        """Why calls that the server has not answered will never be."""
        self._id = ""
        self._reader: asyncio.Task[None] | None = None
        self._posts: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        self._reader = asyncio.get_running_loop().create_task(self._read())

    def close(self) -> None:
        for task in (self._reader, *self._posts):
            if task is not None:
                # The server ends what still runs when the connection is closed.
                task.cancel()

    @property
    def info(self) -> wire.ServedModel:
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    def astream(
        self,
        prompts: Sequence[int],
        sampling_params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> TokenStream:
        answer = self._answer_to(tag)
        if answer is None:
            return self._engine.astream(
                prompts, sampling_params, tag=tag, priority=priority, cache_salt=cache_salt
            )
        return _AnswerStream(answer, sampling_params.n)

    async def agenerate(
        self, prompts: Sequence[Sequence[int]], sampling_params: SamplingParams, *, cache_salt: str
    ) -> None:
        """Computes nothing ahead: the server has the whole program already."""

    async def ascore(
        self,
        prompt: list[int],
        continuations: Sequence[list[int]],
        *,
        tag: ProgramTag,
        priority: int,
        cache_salt: str,
    ) -> list[RemoteScore]:
        answer = self._answer_to(tag)
        if answer is None:
            return await self._engine.ascore(
                prompt, continuations, tag=tag, priority=priority, cache_salt=cache_salt
            )
        scores = await answer.next()
        if not isinstance(scores, programs.CallScores):
            raise GenerationError("the server answers a select with text; is it of the same version?")
        return [
            RemoteScore([wire.from_finite(value) for value in one.token_logprobs], one.num_cached_tokens)
            for one in scores.scores
        ]

    def flush_cache(self) -> int:
        return self._engine.flush_cache()

    def stats(self) -> object:
        return self._engine.stats()

    async def aclose(self) -> None:
        """The connections are the endpoint's."""

    def tell_results(self, tag: ProgramTag, results: Sequence[tuple[ToolCall, str]]) -> None:
        """Posts what tools gave, in the background; where that fails, so do the calls that wait."""
        told = programs.ToolResults(
            variable=self._variables[tag.branch, tag.step],
            results=[programs.ToolResult(id=call.id, content=text) for call, text in results],
        )
        task = asyncio.get_running_loop().create_task(self._post(told))
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    async def _post(self, told: programs.ToolResults) -> None:
        try:
            await self._client.post(f"{programs.PROGRAMS_ROUTE}/{self._id}/tool_results", told)
        except Exception as error:
            # Whatever it is, it is the failure of the calls that wait for it.
            self._finish(error)

    @property
    def _client(self) -> HttpClient:
        return self._engine.client

    def _answer_to(self, tag: ProgramTag) -> "_Answer | None":
        variable = self._variables.get((tag.branch, tag.step))
        if variable is None:
            return None
        number = self._numbers[variable]
        self._numbers[variable] += 1
        return self._answer(variable, number)

    def _answer(self, variable: str, number: int) -> "_Answer":
        answer = self._answers.get((variable, number))
        if answer is None:
            answer = self._answers[variable, number] = _Answer(self._end)
        return answer

    async def _read(self) -> None:
        ended: Exception = GenerationError(f"{self._client.server.name} broke off the program")
        try:
            async with self._client.events(programs.PROGRAMS_ROUTE, self._request, is_end) as events:
                async for event in events:
                    if not is_end(event):
                        self._take(event.data)
                        continue
                    ended = GenerationError(
                        f"{self._client.server.name} ended the program before this call was answered"
                    )
        except Exception as error:
            # Whatever it is, it is the failure of the calls that wait.
            ended = error
        self._finish(ended)

    def _take(self, data: str) -> None:
        try:
            event = _EVENT.decode(data)
        except msgspec.DecodeError as error:
            raise self._failure(data, error) from error
        match event:
            case programs.ProgramStarted(id=program_id):
                self._id = program_id
            case programs.CallDelta(variable=variable, number=number, event=increment):
                self._answer(variable, number).put(wire.from_finite_event(increment))
            case programs.CallScores(variable=variable, number=number):
                self._answer(variable, number).put(event)
            case programs.CallFailed(variable=variable, number=number, error=detail):
                self._answer(variable, number).finish(wire.as_error(detail))
            case _:
                pass  # Told to those who have not the language themselves.

    def _failure(self, data: str, error: msgspec.DecodeError) -> Exception:
        """A stream that failed ends with an error; all else is none of a ramet server's."""
        with contextlib.suppress(msgspec.DecodeError):
            detail = msgspec.json.decode(data, type=wire.ErrorBody).error
            return RequestFailedError(detail.message)
        return GenerationError(f"{self._client.server.name} sent an event that is none of a program's: {error}")

    def _finish(self, error: Exception) -> None:
        if self._end is None:
            self._end = error
            for answer in self._answers.values():
                answer.finish(error)


Item = wire.GenerateEvent | programs.CallScores


class _Answer:
    """What the server's run got for one call, as it comes."""

    def __init__(self, end: Exception | None) -> None:
        self._items: list[Item] = []
        self._position = 0
        self._end = end
        self._changed = asyncio.Event()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._changed.set()

    def finish(self, error: Exception) -> None:
        """Nothing follows. Whoever waits for more gets the error; the first one stays."""
        self._end = self._end or error
        self._changed.set()

    async def next(self) -> Item:
        """Raises why there is no more."""
        while self._position == len(self._items):
            if self._end is not None:
                raise _again(self._end)
            self._changed.clear()
            await self._changed.wait()
        self._position += 1
        return self._items[self._position - 1]


class _AnswerStream:
    """A TokenStream of an answer; leaving it leaves the server's run alone."""

    def __init__(self, answer: _Answer, num_answers: int) -> None:
        self._answer = answer
        self._num_running = num_answers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[wire.GenerateEvent]:
        while self._num_running:
            item = await self._answer.next()
            if not isinstance(item, wire.GenerateEvent):
                raise GenerationError("the server answers a gen with scores; is it of the same version?")
            if item.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                continue  # the failure comes next
            self._num_running -= item.finish_reason is not None
            yield item


class SentPrompt(LocalPrompt):
    """A prompt whose calls a server's run answers: what tools gave is told to that."""

    _tag = ProgramTag()

    def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        self._tag = tag
        return super().generate(params, tag=tag, priority=priority)

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        super().append_tool_results(results)
        engine = self._backend.engine
        assert isinstance(engine, SentToServer)
        engine.tell_results(self._tag, results)


def _again(error: Exception) -> Exception:
    """The same for one of several who are told: an exception is raised once."""
    if isinstance(error, InvalidRequestError):
        again: Exception = type(error)(str(error), field=error.field)
    elif isinstance(error, GenerationError):
        again = GenerationError(error.message)
    else:
        return error
    again.__cause__ = error
    return again
