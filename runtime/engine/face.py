"""EngineFace: what users call. It is composed of an EngineClient and a tokenizer, and knows nothing else of the
engine.
"""

import asyncio
import itertools
import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, overload

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.calls import Call, Collector, IncrementQueue, LiveCalls, joined_call
from ramet.runtime.engine.client import EngineClient, EngineInfo, EngineStats
from ramet.runtime.engine.embedding import plan_embeddings
from ramet.runtime.engine.intake import NO_CACHE_USE, Ask, CacheUse, Intake
from ramet.runtime.engine.progress import batch_progress
from ramet.runtime.engine.prompts import Message
from ramet.runtime.engine.results import Embedding, Output, Score
from ramet.runtime.engine.scoring import plan_scores
from ramet.runtime.engine.sinks import AsyncSink, ThreadSink
from ramet.runtime.engine.streams import AsyncTextStream, OpenedBatch, Release, TextStream
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, SamplingParams
from ramet.runtime.tokenizer import Tokenizer

Params = SamplingParams | Sequence[SamplingParams] | None
Tags = ProgramTag | Sequence[ProgramTag] | None


class EngineFace:
    """Generate, stream and score, for threads and for coroutines, on whatever engine the client leads to.

    Arguments that all of them share:
        prompts: a text, a list of token ids, or a list of those for a batch. Text gets the BOS token that the
            model wants, and the texts of special tokens in it stand for those tokens; token ids are taken as
            they are.
        messages: instead of prompts, one conversation (a list of ``{"role": ..., "content": ...}``) or a list
            of them, rendered by the model's own chat template. Nothing in a message becomes a special token.
        sampling_params: one for all, or one a prompt; any of its fields may be given by name besides
        (``temperature=0``). tag: whose program the request belongs to; one for all, or one a prompt.
        priority: higher runs earlier.
        cache_salt: prefixes are shared only between requests of the same salt.

    Errors that all of them raise:
        InvalidRequestError: the request is wrong. Nothing of it runs; in a batch the message names the prompt.
        RequestFailedError: the runtime failed while it computed the request; others go on.
        RequestAbortedError: the request was aborted.
        EngineDeadError: the engine is closed or gone.

    Every method may be called from any thread, and the asynchronous ones from any event loop.
    """

    def __init__(self, client: EngineClient, tokenizer: Tokenizer) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._intake = Intake(tokenizer, client.info)
        self._live = LiveCalls()
        self._ids = itertools.count()
        self._id_prefix = secrets.token_hex(4)
        # An engine that is dropped or still open when the interpreter exits is closed; the finaliser holds the
        # client only.
        self._finalizer = weakref.finalize(self, client.close)

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @overload
    def generate(
        self,
        prompts: str | Sequence[int] | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
        progress: bool = True,
        return_errors: bool = False,
        **overrides: Any,
    ) -> Output: ...

    @overload
    def generate(
        self,
        prompts: Sequence[str | Sequence[int]] | None = None,
        sampling_params: Params = None,
        *,
        messages: Sequence[Sequence[Message]] | None = None,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
        progress: bool = True,
        return_errors: bool = False,
        **overrides: Any,
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: object = None,
        sampling_params: Params = None,
        *,
        messages: object = None,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
        progress: bool = True,
        return_errors: bool = False,
        **overrides: Any,
    ) -> Any:
        """An Output for one prompt, a list of them in order for a batch. Waits until all have ended.

        The first request that fails ends the call: its error is raised and the rest of the batch aborted. With
        ``return_errors`` nothing is raised for it; its Output has the ``error`` and the finish reason instead.
        ``progress`` shows a bar for a batch if stderr is a terminal. Ctrl-C aborts what was submitted.
        """
        ask = Ask(prompts, messages, sampling_params, overrides, tag, priority, cache_salt)
        calls, is_batch = self._intake.calls(ask, self._new_id)
        outputs = self._run(calls, keep_errors=return_errors, progress=progress)
        return outputs if is_batch else outputs[0]

    @overload
    async def agenerate(
        self,
        prompts: str | Sequence[int] | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
        return_errors: bool = False,
        **overrides: Any,
    ) -> Output: ...

    @overload
    async def agenerate(
        self,
        prompts: Sequence[str | Sequence[int]] | None = None,
        sampling_params: Params = None,
        *,
        messages: Sequence[Sequence[Message]] | None = None,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
        return_errors: bool = False,
        **overrides: Any,
    ) -> list[Output]: ...

    async def agenerate(
        self,
        prompts: object = None,
        sampling_params: Params = None,
        *,
        messages: object = None,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
        return_errors: bool = False,
        **overrides: Any,
    ) -> Any:
        """As ``generate``, awaited. Cancelling it aborts its requests. ``request_id`` names one prompt's call
        for ``abort``.
        """
        ask = Ask(prompts, messages, sampling_params, overrides, tag, priority, cache_salt, request_id)
        # A batch may take seconds to tokenise, which the event loop must not wait for.
        calls, is_batch = await asyncio.to_thread(self._intake.calls, ask, self._new_id)
        outputs = await self._arun(calls, keep_errors=return_errors)
        return outputs if is_batch else outputs[0]

    def stream(
        self,
        prompts: str | Sequence[int] | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
        **overrides: Any,
    ) -> TextStream:
        """Iterates over the increments of one prompt's answer (of its ``n`` answers: by their ``index``).

        The request is checked and submitted at once; leaving the stream early aborts it.
        """
        ask = Ask(prompts, messages, sampling_params, overrides, tag, priority, cache_salt, request_id)
        call = self._single_call(ask)
        sink = ThreadSink()
        self._submit(call, sink)
        return TextStream(call.request_id, IncrementQueue(call), sink, self._releaser(call))

    def astream(
        self,
        prompts: str | Sequence[int] | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
        **overrides: Any,
    ) -> AsyncTextStream:
        """As ``stream``, for ``async for``; called inside a running event loop."""
        ask = Ask(prompts, messages, sampling_params, overrides, tag, priority, cache_salt, request_id)
        call = self._single_call(ask)
        sink = AsyncSink()
        self._submit(call, sink)
        return AsyncTextStream(call.request_id, IncrementQueue(call), sink, self._releaser(call))

    async def astream_batch(
        self,
        prompts: object = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: object = None,
        chat_options: Mapping[str, Any] | None = None,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache: CacheUse = NO_CACHE_USE,
        request_id: str | None = None,
    ) -> OpenedBatch:
        """As ``astream``, for one prompt or several: one stream has the increments of all of them.

        ``chat_options`` are keyword arguments of ``encode_chat``. Tokenising does not hold up the event loop.
        Where one of the requests fails, the stream raises its error and the others are aborted.
        """
        ask = Ask(
            prompts,
            messages,
            sampling_params,
            {},
            tag,
            priority,
            cache.salt,
            pin=cache.pin,
            chat_options=chat_options or {},
        )
        calls, _ = await asyncio.to_thread(self._intake.calls, ask, self._new_id)
        whole = joined_call(request_id or self._new_id(), calls)
        sink = AsyncSink()
        self._submit(whole, sink)
        stream = AsyncTextStream(whole.request_id, IncrementQueue(whole), sink, self._releaser(whole))
        return OpenedBatch([call.prompt_token_ids for call in calls], stream)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Message] | None = None,
        continue_final_message: bool = False,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
        **overrides: Any,
    ) -> Output:
        """The answer to one conversation: ``generate(messages=messages)`` with the chat template's own options.

        ``tools``: JSON descriptions of the functions that the model may call. ``continue_final_message``: the
        answer goes on where the last message, an assistant's, stops.
        """
        ask = Ask(
            messages=messages,
            sampling_params=sampling_params,
            overrides=overrides,
            tag=tag,
            priority=priority,
            cache_salt=cache_salt,
            chat_options={"tools": tools, "continue_final_message": continue_final_message},
        )
        call = self._single_call(ask)
        return self._run([call], keep_errors=False, progress=False)[0]

    def score(
        self,
        prompt: str | list[int] | None = None,
        continuations: Sequence[str | list[int]] = (),
        *,
        messages: Sequence[Message] | None = None,
        normalize: bool = False,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Score]:
        """How probable each continuation is after the prompt, in the continuations' order.

        The tokens scored are the prompt's ids followed by the continuation's, which is tokenised by itself.
        All are one request of the engine: what they share with one another is computed once, as their trie.
        ``normalize``: ``score`` is the mean log probability per token instead of the sum.
        """
        ask = Ask(prompt, messages, tag=tag, priority=priority, cache_salt=cache_salt)
        plan = plan_scores(ask, continuations, self._intake, self._new_id)
        return plan.scores(self._collect([plan.call], keep_errors=False, progress=False), normalize=normalize)

    async def ascore(
        self,
        prompt: str | list[int] | None = None,
        continuations: Sequence[str | list[int]] = (),
        *,
        messages: Sequence[Message] | None = None,
        normalize: bool = False,
        tag: ProgramTag | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Score]:
        """As ``score``, awaited."""
        ask = Ask(prompt, messages, tag=tag, priority=priority, cache_salt=cache_salt)
        plan = await asyncio.to_thread(plan_scores, ask, continuations, self._intake, self._new_id)
        return plan.scores(await self._acollect([plan.call], keep_errors=False), normalize=normalize)

    def embed(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        pooling: str = "last",
        normalize: bool = True,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Embedding]:
        """The embedding of each prompt, in order; of a single prompt, a list of one.

        It is what the model's output head reads (the hidden state behind the last norm) at the prompt's last
        token, or with ``pooling`` "mean" the mean over all of its tokens. ``normalize``: of length 1.

        Raises:
            InvalidRequestError: the model gives none (``info.embedding_size`` is 0).
        """
        ask = Ask(prompts, tag=tag, priority=priority, cache_salt=cache_salt)
        plan = plan_embeddings(ask, pooling, normalize, self._intake, self._new_id)
        collector = self._collect(plan.calls, keep_errors=False, progress=False)
        return plan.embeddings(collector.outputs(), collector.embeddings())

    async def aembed(
        self,
        prompts: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        pooling: str = "last",
        normalize: bool = True,
        tag: Tags = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> list[Embedding]:
        """As ``embed``, awaited."""
        ask = Ask(prompts, tag=tag, priority=priority, cache_salt=cache_salt)
        plan = await asyncio.to_thread(plan_embeddings, ask, pooling, normalize, self._intake, self._new_id)
        collector = await self._acollect(plan.calls, keep_errors=False)
        return plan.embeddings(collector.outputs(), collector.embeddings())

    def abort(self, request_id: str) -> None:
        """End a running request and all its answers; whoever waits for it gets RequestAbortedError.

        An unknown or finished id is ignored.
        """
        self._client.abort(self._live.input_ids(request_id))

    def check_alive(self) -> None:
        """Raises EngineDeadError where the engine is closed or gone. Does not wait for it."""
        self._client.check_alive()

    def stats(self) -> EngineStats:
        return self._client.stats()

    def cache_outline(self, salt_prefix: str = "") -> CacheOutline:
        """The shape of the radix trees whose ``cache_salt`` begins so: numbers, no tokens."""
        return self._client.cache_outline(salt_prefix)

    def release_session(self, session: str) -> int:
        """What requests with a SessionPin of this name keep may be evicted; how many tokens that are."""
        return self._client.release_session(session)

    def flush_cache(self) -> int:
        """Drop every cached prefix that no running request uses; returns the tokens freed."""
        return self._client.flush_cache()

    def check_integrity(self) -> None:
        """Raises where the accounting of KV pages and requests does not add up; for tests and
        debugging.
        """
        self._client.check_integrity()

    def close(self) -> None:
        """Ends the engine; whoever waits gets EngineDeadError. Closing twice is allowed."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _new_id(self) -> str:
        return f"{self._id_prefix}-{next(self._ids)}"

    def _single_call(self, ask: Ask) -> Call:
        calls, is_batch = self._intake.calls(ask, self._new_id)
        if is_batch:
            raise InvalidRequestError(
                "this method takes one prompt or conversation, not a list; call it once for each, or generate",
                field="prompts" if ask.messages is None else "messages",
            )
        return calls[0]

    def _run(self, calls: list[Call], *, keep_errors: bool, progress: bool) -> list[Output]:
        return self._collect(calls, keep_errors=keep_errors, progress=progress).outputs()

    async def _arun(self, calls: list[Call], *, keep_errors: bool) -> list[Output]:
        return (await self._acollect(calls, keep_errors=keep_errors)).outputs()

    def _collect(self, calls: list[Call], *, keep_errors: bool, progress: bool) -> Collector:
        sink = ThreadSink()
        collector = Collector(calls)
        with (
            self._running(calls, sink, apart=keep_errors),
            batch_progress(len(calls), wanted=progress) as show,
        ):
            while not collector.done:
                collector.add(sink.get(), keep_errors=keep_errors)
                show(collector.num_finished)
        return collector

    async def _acollect(self, calls: list[Call], *, keep_errors: bool) -> Collector:
        sink = AsyncSink()
        collector = Collector(calls)
        with self._running(calls, sink, apart=keep_errors):
            while not collector.done:
                collector.add(await sink.get(), keep_errors=keep_errors)
        return collector

    @contextmanager
    def _running(
        self, calls: list[Call], sink: ThreadSink | AsyncSink, *, apart: bool = False
    ) -> Iterator[None]:
        """Submits the calls; an error, a cancellation or Ctrl-C inside aborts what still runs of them.

        ``apart``: one that the engine refuses does not keep the others from it.
        """
        self._live.claim(calls)
        try:
            for inputs in (
                [call.inputs for call in calls] if apart else [[item for call in calls for item in call.inputs]]
            ):
                self._client.submit(inputs, sink)
            yield
        except BaseException:
            sink.close()
            self._client.abort([key for call in calls for key in call.input_ids])
            raise
        finally:
            self._live.release(calls)

    def _submit(self, call: Call, sink: ThreadSink | AsyncSink) -> None:
        self._live.claim([call])
        try:
            self._client.submit(call.inputs, sink)
        except BaseException:
            self._live.release([call])
            raise

    def _releaser(self, call: Call) -> Release:
        """Holds the face, so that an engine is not closed while one of its streams is read."""

        def release(still_running: bool) -> None:
            self._live.release([call])
            if still_running:
                self._client.abort(call.input_ids)

        return release
