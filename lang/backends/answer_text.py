"""The text of a server's answer as the program gets it: unwrapped, stopped where the server does not stop,
checked."""

import json
from dataclasses import dataclass

from ramet.lang.backends.answer_check import check_answer
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import FinishReason, GrammarSpec, SamplingParams
from ramet.runtime.tokenizer import StopMatcher

ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The answer comes as the value of ANSWER in a JSON object, since the server constrains objects only."""

    is_text: bool
    """The value is a string, and the answer what it says; else the answer is the value's JSON."""

    def unwrapped(self, text: str) -> str:
        """Raises GenerationError where the object is not whole."""
        try:
            value = json.loads(text)[ANSWER]
        except (ValueError, KeyError, TypeError) as error:
            raise GenerationError(
                f"the constrained answer {text[:80]!r} is not whole; raise max_tokens"
            ) from error
        return str(value) if self.is_text else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an answer is read: what of the request the server was not asked for, or is not trusted with."""

    wrapping: Wrapping | None = None
    stops: tuple[str, ...] = ()
    stop_regexes: tuple[str, ...] = ()
    include_stop: bool = False
    grammar: GrammarSpec | None = None
    may_be_cut: bool = False
    """The server stops at stops of its own, which need not be where the grammar ends."""

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        wrapping: Wrapping | None,
        *,
        server_stops: bool,
        server_regexes: bool = False,
    ) -> "Reading":
        """server_stops, server_regexes: the server stops at these. A wrapped answer it does not see."""
        takes = wrapping is None
        return cls(
            wrapping=wrapping,
            stops=() if server_stops and takes else params.stop,
            stop_regexes=() if server_regexes and takes else params.stop_regex,
            include_stop=params.include_stop,
            grammar=params.grammar,
            may_be_cut=takes and bool((server_stops and params.stop) or (server_regexes and params.stop_regex)),
        )


class AnswerText:
    """One answer."""

    def __init__(self, name: str, reading: Reading) -> None:
        """name: of the server, for errors."""
        self._name = name
        self._reading = reading
        self._matcher = StopMatcher(reading.stops, reading.stop_regexes, include_stop=reading.include_stop)
        self._parts: list[str] = []

    @property
    def is_over(self) -> bool:
        """What follows is no part of the answer."""
        return self._matcher.hit is not None

    def push(self, text: str) -> str:
        """What is certain to be the answer's."""
        reading = self._reading
        if reading.wrapping is not None or reading.grammar is not None:
            self._parts.append(text)
        return "" if reading.wrapping is not None else self._matcher.push(text)[0]

    def finish(
        self, finish_reason: FinishReason, stop_reason: int | str | None
    ) -> tuple[str, FinishReason, int | str | None]:
        """The rest of the answer's text, and how the answer ended, from how it ended on the server.

        Raises:
            GenerationError: it does not conform to the constraint.
        """
        if self._matcher.hit is not None:
            return "", FinishReason.STOP, self._matcher.hit
        reading, whole, rest = self._reading, "".join(self._parts), ""
        if reading.wrapping is not None:
            whole = reading.wrapping.unwrapped(whole)
            rest, _ = self._matcher.push(whole)
        is_whole = (
            finish_reason is FinishReason.STOP and not isinstance(stop_reason, str) and not reading.may_be_cut
        )
        if reading.grammar is not None and is_whole:
            check_answer(self._name, reading.grammar, whole)
        more, stop = self._matcher.flush()
        if stop is not None:
            return rest + more, FinishReason.STOP, stop
        return rest + more, finish_reason, stop_reason
