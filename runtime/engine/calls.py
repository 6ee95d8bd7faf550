"""A call is one prompt with its answers; what comes back for it is gathered here, without waiting for
anything.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ramet.runtime.engine.messages import ErrorRecord, revive_ramet_error
from ramet.runtime.engine.results import Completion, Increment, Output
from ramet.runtime.engine.sinks import Delivery, Failure
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    RametError,
    RequestAbortedError,
    RequestFailedError,
    RequestStats,
    TextOutput,
    TokenLogprobs,
    UnsupportedConstraintError,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One prompt, and one engine request for each of its answers."""

    request_id: str
    prompt_token_ids: list[int]
    inputs: tuple[GenerateInput, ...]

    @property
    def input_ids(self) -> list[str]:
        return [item.request_id for item in self.inputs]


def joined_call(request_id: str, calls: Sequence[Call]) -> Call:
    """Several calls as one that is submitted, read and aborted as a whole. Its answers are those of the calls
    in order, so answer ``index`` of call ``i`` is ``i * n + index`` where each has n."""
    return Call(request_id, [], tuple(item for call in calls for item in call.inputs))


class LiveCalls:
    """The calls of one face that have not ended, by request id. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end an abandoned stream while this thread is in here.
        self._lock = threading.RLock()
        self._calls: dict[str, Call] = {}
        """Under the call's own id and under those of its engine requests."""

    def claim(self, calls: Sequence[Call]) -> None:
        """Raises InvalidRequestError where an id is in use; then nothing is claimed."""
        with self._lock:
            claimed: dict[str, Call] = {}
            for call in calls:
                for key in _names(call):
                    if key in self._calls or key in claimed:
                        raise InvalidRequestError(
                            f"request_id {key!r} belongs to a running request; choose another one",
                            field="request_id",
                        )
                claimed |= dict.fromkeys(_names(call), call)
            self._calls |= claimed

    def release(self, calls: Iterable[Call]) -> None:
        """Of calls that were claimed."""
        with self._lock:
            for call in calls:
                for key in _names(call):
                    self._calls.pop(key, None)

    def input_ids(self, request_id: str) -> list[str]:
        """The engine requests of a live call; none for an unknown or finished one."""
        with self._lock:
            call = self._calls.get(request_id)
        return call.input_ids if call is not None and call.request_id == request_id else []


def _names(call: Call) -> list[str]:
    return list(dict.fromkeys((call.request_id, *call.input_ids)))


@dataclass(slots=True)
class _Answer:
    """One answer as far as it has come."""

    call_index: int
    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    last: TextOutput | None = None

    def add(self, output: TextOutput) -> None:
        self.text.append(output.text)
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            self.logprobs = self.logprobs if self.logprobs is not None else []
            self.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is not None:
            self.last = output

    def completion(self) -> Completion:
        last = self.last
        assert last is not None
        assert last.finish_reason is not None
        return Completion(
            index=self.index,
            text="".join(self.text),
            token_ids=self.token_ids,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            logprobs=self.logprobs,
            stats=last.stats or RequestStats(),
            error=last.error,
        )


class Collector:
    """Gathers the outputs of a batch of calls."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._answers = {
            item.request_id: _Answer(call_index, index)
            for call_index, call in enumerate(calls)
            for index, item in enumerate(call.inputs)
        }
        self._unfinished = [len(call.inputs) for call in calls]
        self.num_finished = 0
        """Calls of which every answer has ended."""

    @property
    def done(self) -> bool:
        return self.num_finished == len(self._calls)

    def add(self, delivery: Delivery, *, keep_errors: bool) -> None:
        """Raises what a Failure says, and the error of a request that did not succeed; with ``keep_errors``
        only where the fault is not one call's. Each call was submitted by itself then.
        """
        if isinstance(delivery, Failure):
            refused = self._refused(delivery) if keep_errors else []
            if not refused:
                raise refusal(self._calls, delivery)
            delivery = refused
        for output in delivery:
            answer = self._answers[output.request_id]
            answer.add(output)
            if output.finish_reason is None:
                continue
            self._unfinished[answer.call_index] -= 1
            self.num_finished += self._unfinished[answer.call_index] == 0
            error = None if keep_errors else failure_of(output)
            if error is not None:
                raise in_batch(error, answer.call_index, len(self._calls))

    def _refused(self, failure: Failure) -> list[TextOutput]:
        """The ends of the answers of the call that was refused; [] where it is no call's fault."""
        return [
            TextOutput(
                request_id=request_id,
                finish_reason=FinishReason.ERROR,
                error=str(failure.error),
                error_kind=type(failure.error).__name__,
            )
            for call in self._calls
            if failure.request_id in call.input_ids
            for request_id in call.input_ids
        ]

    def scores(self) -> list[list[float]]:
        """Of the one call that there is, which scores continuations. Only once done."""
        (answer,) = self._answers.values()
        assert answer.last is not None
        return answer.last.scores or []

    def embeddings(self) -> list[list[float] | None]:
        """Of each call, which has one answer. Only once done."""
        return [None if one.last is None else one.last.embedding for one in self._answers.values()]

    def stats(self) -> RequestStats:
        """Of the one call that there is. Only once done."""
        return self.outputs()[0].stats

    def outputs(self) -> list[Output]:
        """In the calls' order. Only once done."""
        assert self.done
        results = []
        for call in self._calls:
            answers = [self._answers[key] for key in call.input_ids]
            results.append(
                Output(
                    request_id=call.request_id,
                    prompt_token_ids=call.prompt_token_ids,
                    outputs=[answer.completion() for answer in answers],
                    prompt_logprobs=answers[0].prompt_logprobs,
                )
            )
        return results


class IncrementQueue:
    """The increments of one call, in the order they came; then its end, or the error that ended it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._index = {key: index for index, key in enumerate(call.input_ids)}
        self._pending: deque[Increment] = deque()
        self._num_unfinished = len(call.inputs)
        self._error: RametError | None = None
        self._failed = False

    @property
    def done(self) -> bool:
        """Nothing more will be added."""
        return self._failed or not self.running

    @property
    def running(self) -> bool:
        """An answer has not ended."""
        return self._num_unfinished > 0

    def add(self, delivery: Delivery) -> None:
        if isinstance(delivery, Failure):
            self._fail(refusal([self._call], delivery))
            return
        for output in delivery:
            self._num_unfinished -= output.finish_reason is not None
            self._pending.append(
                Increment(
                    request_id=self._call.request_id,
                    index=self._index[output.request_id],
                    text=output.text,
                    token_ids=output.token_ids,
                    logprobs=output.logprobs,
                    prompt_logprobs=output.prompt_logprobs,
                    finish_reason=output.finish_reason,
                    stop_reason=output.stop_reason,
                    stats=output.stats,
                )
            )
            if (error := failure_of(output)) is not None:
                self._fail(error)

    def pop(self) -> Increment | None:
        """The next increment; None: there is none yet, or (once done) none any more. Raises the error after the
        last.
        """
        if self._pending:
            return self._pending.popleft()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def _fail(self, error: RametError) -> None:
        if not self._failed:
            self._error, self._failed = error, True


def failure_of(output: TextOutput) -> RametError | None:
    """The error that the end of a request stands for."""
    match output.finish_reason:
        case FinishReason.ERROR:
            if output.error_kind is not None:
                field = "grammar" if output.error_kind == UnsupportedConstraintError.__name__ else None
                return revive_ramet_error(ErrorRecord(output.error_kind, output.error or "", field))
            return RequestFailedError(output.error or "the request failed")
        case FinishReason.ABORT:
            return RequestAbortedError(output.error or "the request was aborted before it finished")
        case _:
            return None


def refusal(calls: Sequence[Call], failure: Failure) -> RametError:
    """A failure's error; where it is one of several prompts' fault, the message begins with which."""
    for index, call in enumerate(calls):
        if failure.request_id in call.input_ids:
            return in_batch(failure.error, index, len(calls))
    return failure.error


def in_batch(error: RametError, index: int, num_calls: int) -> RametError:
    """The error with the prompt's place in front, where there are several."""
    if num_calls == 1:
        return error
    message = f"prompt {index} of the batch: {error}"
    if isinstance(error, InvalidRequestError):
        return type(error)(message, field=error.field)
    return type(error)(message)
