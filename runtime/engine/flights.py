"""A flight: one submission as a supervisor follows it through the deaths of engines.

A replay runs the same requests with the same seeds from their beginning: engines are exact, so its tokens begin
with those that were delivered before, and delivery goes on behind them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ramet.runtime.engine.client import OutputSink
from ramet.runtime.protocol import FinishReason, GenerateInput, RametError, TextOutput

DIVERGED = "the engine was restarted, and its replay of this request gave other tokens"


@dataclass(slots=True)
class _Delivered:
    """What one request's sink has been given, and how far a replay has come in it."""

    token_ids: list[int] = field(default_factory=list)
    num_characters: int = 0
    has_prompt_logprobs: bool = False
    is_finished: bool = False
    replayed_tokens: int = 0
    replayed_characters: int = 0

    def take(self, output: TextOutput) -> TextOutput | None:
        """What of the output is new; None: nothing. Raises ValueError where a replay takes another way."""
        start = self.replayed_tokens
        known = min(max(len(self.token_ids) - start, 0), len(output.token_ids))
        if output.token_ids[:known] != self.token_ids[start : start + known]:
            raise ValueError(DIVERGED)
        self.replayed_tokens += len(output.token_ids)
        known_characters = min(max(self.num_characters - self.replayed_characters, 0), len(output.text))
        self.replayed_characters += len(output.text)
        token_ids, text = output.token_ids[known:], output.text[known_characters:]
        prompt_logprobs = None if self.has_prompt_logprobs else output.prompt_logprobs
        self.token_ids += token_ids
        self.num_characters += len(text)
        self.has_prompt_logprobs |= prompt_logprobs is not None
        self.is_finished = output.finish_reason is not None
        if not (token_ids or text or self.is_finished or prompt_logprobs):
            return None
        return msgspec.structs.replace(
            output,
            token_ids=token_ids,
            text=text,
            logprobs=None if output.logprobs is None else output.logprobs[known:],
            prompt_logprobs=prompt_logprobs,
        )

    def rewind(self) -> None:
        self.replayed_tokens = self.replayed_characters = 0


class Flight:
    """An OutputSink between an engine and whoever waits. Called from the engine's thread, and by its supervisor
    only while no engine runs it.
    """

    def __init__(
        self, inputs: Sequence[GenerateInput], sink: OutputSink, ended: "Callable[[Flight], None]"
    ) -> None:
        """``ended`` is called once, when nothing is left to compute."""
        self._inputs = list(inputs)
        self._sink = sink
        self._ended = ended
        self._delivered = {one.request_id: _Delivered() for one in inputs}
        self.num_deaths = 0
        """Engines that died while they ran it."""
        self.aborted: set[str] = set()
        """Requests that somebody wants ended: an engine that dies may never have heard of it."""

    @property
    def request_ids(self) -> list[str]:
        return list(self._delivered)

    def rest(self) -> list[GenerateInput]:
        """The requests that a new engine has to run; it will repeat what was delivered. Ends those that were
        aborted.
        """
        self.give_up(FinishReason.ABORT, None, list(self.aborted))
        rest = [one for one in self._inputs if not self._delivered[one.request_id].is_finished]
        for one in rest:
            self._delivered[one.request_id].rewind()
        return rest

    def put(self, outputs: list[TextOutput]) -> bool:
        new: list[TextOutput] = []
        for output in outputs:
            delivered = self._delivered[output.request_id]
            if delivered.is_finished:
                continue
            try:
                taken = delivered.take(output)
            except ValueError as error:
                delivered.is_finished = True
                taken = failed(output.request_id, str(error))
            if taken is not None:
                new.append(taken)
        listens = self._sink.put(new) if new else True
        if not listens or self.is_finished:
            self._ended(self)
        return listens and not any(one.error == DIVERGED for one in new)

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        """An engine's death is the supervisor's to handle; a refusal is passed on."""
        if request_id is not None:
            self.end(error, request_id)

    @property
    def is_finished(self) -> bool:
        return all(one.is_finished for one in self._delivered.values())

    def end(self, error: RametError, request_id: str | None = None) -> None:
        """Nothing of it will be computed any more."""
        for delivered in self._delivered.values():
            delivered.is_finished = True
        self._sink.fail(error, request_id)
        self._ended(self)

    def give_up(self, finish_reason: FinishReason, error: str | None, request_ids: Sequence[str]) -> None:
        """Ends these of its requests, as an engine would have."""
        mine = [key for key in request_ids if key in self._delivered and not self._delivered[key].is_finished]
        for key in mine:
            self._delivered[key].is_finished = True
        if mine:
            self._sink.put([failed(key, error, finish_reason) for key in mine])
        if self.is_finished:
            self._ended(self)


def failed(request_id: str, error: str | None, finish_reason: FinishReason = FinishReason.ERROR) -> TextOutput:
    return TextOutput(request_id=request_id, finish_reason=finish_reason, error=error)


def with_seed(source: GenerateInput, seeds: random.Random) -> GenerateInput:
    """The same request with a seed, so that it can be run again."""
    if source.params.seed is not None or source.params.is_greedy:
        return source
    params = msgspec.structs.replace(source.params, seed=seeds.getrandbits(63))
    return msgspec.structs.replace(source, params=params)
