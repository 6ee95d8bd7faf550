"""AnswerChecks: answers whose grammar is weaker than what was asked for are held back until they are valid.

Such an answer (of a JsonSchema that is not strict) is gathered while it is generated, and validated by a thread
once it has ended by itself. A valid one is sent whole; one that is not is thrown away, and the request runs
again with another seed. So whoever reads a stream never sees text that is taken back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ramet.runtime.engine.prompts import child_seed
from ramet.runtime.grammar.backend import Check, CompiledGrammar, check_of
from ramet.runtime.grammar.service import Job, JobThreads
from ramet.runtime.protocol import FinishReason, GenerateInput, RequestFailedError, RequestStats, TextOutput
from ramet.runtime.protocol.sampling_params import MAX_N

DEFAULT_MAX_RESAMPLES = 3
CHECK_SECONDS = 5.0
"""How long one answer may be validated. It takes milliseconds, but a schema can be made to take for ever."""
SHOWN_CHARS = 200


@dataclass(slots=True)
class HeldAnswer:
    """A request whose answer is held back, over all its attempts."""

    source: GenerateInput
    """As it came: with the seed of the first attempt."""
    compiled: CompiledGrammar
    check: Check
    arrival: float
    """Seconds of the scheduler's clock."""
    num_resamples: int = 0
    outputs: list[TextOutput] = field(default_factory=list)
    """Of the attempt that runs."""
    job: Job[list[str]] | None = None
    """The validation, once the attempt has ended."""

    @property
    def request_id(self) -> str:
        return self.source.request_id

    def attempt(self) -> GenerateInput:
        """The request of the attempt that is due: the first one's seed, advanced. Without a seed of its own it
        gets a fresh one anyway."""
        params = self.source.params
        if self.num_resamples == 0 or params.seed is None:
            return self.source
        # The answers of one prompt use the children below MAX_N.
        seed = child_seed(params.seed, MAX_N + self.num_resamples)
        return msgspec.structs.replace(self.source, params=msgspec.structs.replace(params, seed=seed))

    def whole(self) -> TextOutput:
        """The attempt as one increment."""
        last = self.outputs[-1]
        stats = last.stats or RequestStats()
        logprobs = [item for output in self.outputs for item in output.logprobs or ()]
        prompt_logprobs = [o.prompt_logprobs for o in self.outputs if o.prompt_logprobs is not None]
        return msgspec.structs.replace(
            last,
            text="".join(output.text for output in self.outputs),
            token_ids=[token_id for output in self.outputs for token_id in output.token_ids],
            logprobs=None if self.source.params.logprobs is None else logprobs,
            prompt_logprobs=prompt_logprobs[0] if prompt_logprobs else None,
            stats=msgspec.structs.replace(stats, num_resamples=self.num_resamples),
        )

    def failure(self, reason: FinishReason, error: str | None = None) -> TextOutput:
        """The end of a request of which no answer is sent."""
        stats = (self.outputs[-1].stats if self.outputs else None) or RequestStats()
        return TextOutput(
            request_id=self.request_id,
            finish_reason=reason,
            error=error,
            error_kind=None if error is None else RequestFailedError.__name__,
            stats=msgspec.structs.replace(stats, num_resamples=self.num_resamples),
        )


class AnswerChecks:
    """The answers that are held back. Used by the engine's thread; validates in a thread of its own.

    Invariant: a request is in here from ``hold`` until one output with a finish reason has left for it.
    """

    def __init__(
        self,
        max_resamples: int = DEFAULT_MAX_RESAMPLES,
        on_done: Callable[[], None] | None = None,
        *,
        seconds: float = CHECK_SECONDS,
        threads: JobThreads | None = None,
    ) -> None:
        """``on_done``: called by the thread that has validated an answer. ``seconds``: one validation's."""
        self._max_resamples = max_resamples
        self._on_done = on_done
        self._seconds = seconds
        self._threads = JobThreads("answer-check", 1) if threads is None else threads
        self._held: dict[str, HeldAnswer] = {}
        self.num_resamples = 0
        """Answers that were thrown away, since the start."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    @property
    def is_checking(self) -> bool:
        """An answer has ended, and nothing is known of it yet."""
        return any(held.job is not None for held in self._held.values())

    def hold(self, source: GenerateInput, compiled: CompiledGrammar, arrival: float) -> None:
        """Hold back the answer of a request that has been taken in, if its grammar is weaker than its spec."""
        check = check_of(compiled)
        if check is not None:
            self._held[source.request_id] = HeldAnswer(source, compiled, check, arrival)

    def push(self, output: TextOutput) -> list[TextOutput]:
        """What a step gave a request, and what of it may be sent now: all of it for a request that is not held
        here. An answer that did not end by itself is not validated: cut at max_tokens or by a stop string it is
        sent as it is, with the reason; failed or aborted, nothing of it is."""
        held = self._held.get(output.request_id)
        if held is None:
            return [output]
        held.outputs.append(output)
        match output.finish_reason:
            case None:
                return []
            case FinishReason.STOP if not isinstance(output.stop_reason, str):
                text = "".join(item.text for item in held.outputs)
                held.job = self._threads.submit(partial(held.check, text), self._on_done)
                return []
            case FinishReason.STOP | FinishReason.LENGTH:
                result = held.whole()
            case reason:
                failed = held.failure(reason, output.error)
                result = msgspec.structs.replace(failed, error_kind=output.error_kind)
        del self._held[output.request_id]
        return [result]

    def settle(self) -> tuple[list[TextOutput], list[HeldAnswer]]:
        """What is known now of the answers that have ended: outputs to send, and requests to run again."""
        outputs: list[TextOutput] = []
        again: list[HeldAnswer] = []
        for held in [held for held in self._held.values() if held.job is not None]:
            assert held.job is not None
            if held.job.is_done:
                outcome = self._judge(held, held.job)
            elif held.job.seconds_running() > self._seconds:
                self._threads.give_up(held.job)
                message = f"the answer was not validated within {self._seconds:g} s; make the schema simpler"
                outcome = held.failure(FinishReason.ERROR, message)
            else:
                continue
            if outcome is None:
                held.num_resamples += 1
                held.outputs, held.job = [], None
                self.num_resamples += 1
                again.append(held)
            else:
                del self._held[held.request_id]
                outputs.append(outcome)
        return outputs, again

    def abort(self, request_id: str) -> TextOutput | None:
        """End a request whose answer is being validated. None: there is none such."""
        held = self._held.get(request_id)
        if held is None or held.job is None:
            return None
        self._threads.give_up(held.job)
        del self._held[request_id]
        return held.failure(FinishReason.ABORT)

    def check_integrity(self, live: Callable[[str], bool]) -> None:
        """Raises AssertionError where a held answer is neither being generated (``live``) nor validated."""
        lost = [key for key, held in self._held.items() if (held.job is None) != live(key)]
        assert not lost, f"held answers that nobody is at: {lost[:5]}"

    def close(self) -> None:
        """Validations that have not begun never will. Does not wait."""
        self._threads.close()

    def _judge(self, held: HeldAnswer, job: Job[list[str]]) -> TextOutput | None:
        """What to send; None: the request is to run again."""
        try:
            problems = job.result()
        except Exception as error:
            message = f"the answer could not be validated: {type(error).__name__}: {error}"
            return held.failure(FinishReason.ERROR, message)
        if not problems:
            return held.whole()
        shown = f"{problems[0][:SHOWN_CHARS]}"
        if held.source.params.is_greedy:
            return held.failure(
                FinishReason.ERROR,
                f"the answer does not meet the schema: {shown}; at temperature 0 another would be the same: "
                "raise the temperature, or ask only for what can be enforced (strict)",
            )
        if held.num_resamples >= self._max_resamples:
            return held.failure(
                FinishReason.ERROR,
                f"none of {held.num_resamples + 1} answers meets the schema; of the last: {shown}; ask only for"
                " what can be enforced (strict), or raise max_resamples",
            )
        return None
