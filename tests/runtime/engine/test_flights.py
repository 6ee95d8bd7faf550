"""A replay delivers what is new, in whatever pieces it comes."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.engine.flights import DIVERGED, Flight, with_seed
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    Logprob,
    RametError,
    SamplingParams,
    TextOutput,
    TokenLogprobs,
)

LETTERS = "abcdefghij"


class Listener:
    """An OutputSink that keeps everything."""

    def __init__(self) -> None:
        self.outputs: list[TextOutput] = []
        self.error: RametError | None = None
        self.listens = True

    def put(self, outputs: list[TextOutput]) -> bool:
        self.outputs += outputs
        return self.listens

    def fail(self, error: RametError, request_id: str | None = None) -> None:
        self.error = error

    def text(self, request_id: str) -> str:
        return "".join(one.text for one in self.outputs if one.request_id == request_id)

    def tokens(self, request_id: str) -> list[int]:
        return [token for one in self.outputs if one.request_id == request_id for token in one.token_ids]


def source(request_id: str = "r", **params: object) -> GenerateInput:
    return GenerateInput(request_id=request_id, token_ids=[1], params=SamplingParams(**params))  # type: ignore[arg-type]


def flight_of(*request_ids: str) -> tuple[Flight, Listener, list[Flight]]:
    listener, ended = Listener(), list[Flight]()
    flight = Flight([source(one) for one in request_ids], listener, ended.append)
    return flight, listener, ended


def output(start: int, end: int, *, text_end: int | None = None, finished: bool = False) -> TextOutput:
    """Tokens from ``start`` to ``end`` of the answer; its text may lag behind."""
    return TextOutput(
        request_id="r",
        text=LETTERS[start : end if text_end is None else text_end],
        token_ids=list(range(start, end)),
        logprobs=[TokenLogprobs(Logprob(one, -1.0, 0)) for one in range(start, end)],
        finish_reason=FinishReason.STOP if finished else None,
    )


@given(
    deaths=st.lists(st.lists(st.integers(1, 4), max_size=6), min_size=1, max_size=4),
    last=st.lists(st.integers(1, 4), max_size=10),
)
def test_however_often_it_dies_the_answer_is_whole(deaths: list[list[int]], last: list[int]) -> None:
    flight, listener, ended = flight_of("r")
    for steps in deaths:
        at = 0
        for step in steps:
            if at + step >= len(LETTERS):
                break
            assert flight.put([output(at, at + step)])
            at += step
        flight.fail(EngineDeadError("killed"))
        assert [one.request_id for one in flight.rest()] == ["r"]
    at = 0
    for step in [*last, len(LETTERS)]:
        end = min(at + step, len(LETTERS))
        if end > at:
            flight.put([output(at, end, finished=end == len(LETTERS))])
        at = end
    assert listener.text("r") == LETTERS
    assert listener.tokens("r") == list(range(len(LETTERS)))
    entries = [entry for one in listener.outputs for entry in one.logprobs or []]
    assert [entry.chosen.token_id for entry in entries] == list(range(len(LETTERS)))
    assert [one.finish_reason for one in listener.outputs].count(FinishReason.STOP) == 1
    assert ended == [flight]
    assert listener.error is None


def test_text_that_lags_behind_its_tokens_is_delivered_once() -> None:
    flight, listener, _ = flight_of("r")
    flight.put([TextOutput(request_id="r", token_ids=[0, 1], text="a")])
    flight.rest()
    flight.put([TextOutput(request_id="r", token_ids=[0], text="")])
    flight.put([TextOutput(request_id="r", token_ids=[1, 2], text="abc", finish_reason=FinishReason.LENGTH)])
    assert (listener.text("r"), listener.tokens("r")) == ("abc", [0, 1, 2])


def test_the_prompts_logprobs_come_once() -> None:
    flight, listener, _ = flight_of("r")
    first = TextOutput(request_id="r", token_ids=[0], text="a", prompt_logprobs=[None])
    flight.put([first])
    flight.rest()
    flight.put([first])
    assert len(listener.outputs) == 1


def test_a_replay_that_takes_another_way_fails_its_request_alone() -> None:
    flight, listener, ended = flight_of("r", "s")
    flight.put([TextOutput(request_id="r", token_ids=[0], text="a"), TextOutput(request_id="s", token_ids=[5])])
    flight.rest()
    assert not flight.put([TextOutput(request_id="r", token_ids=[7], text="b")])
    assert (listener.outputs[-1].finish_reason, listener.outputs[-1].error) == (FinishReason.ERROR, DIVERGED)
    flight.put([TextOutput(request_id="r", token_ids=[8])])
    assert [one.request_id for one in flight.rest()] == ["s"]
    flight.put([TextOutput(request_id="s", token_ids=[5], finish_reason=FinishReason.STOP)])
    assert ended == [flight]


def test_a_refusal_is_passed_on() -> None:
    flight, listener, ended = flight_of("r", "s")
    flight.fail(InvalidRequestError("no"), "s")
    assert isinstance(listener.error, InvalidRequestError)
    assert flight.is_finished
    assert ended == [flight]


def test_a_listener_that_left_ends_the_flight() -> None:
    flight, listener, ended = flight_of("r")
    listener.listens = False
    assert not flight.put([output(0, 1)])
    assert ended == [flight]


def test_giving_up_ends_what_was_asked_for() -> None:
    flight, listener, ended = flight_of("r", "s")
    flight.give_up(FinishReason.ABORT, None, ["r", "other"])
    flight.give_up(FinishReason.ABORT, None, ["r"])
    assert [(one.request_id, one.finish_reason) for one in listener.outputs] == [("r", FinishReason.ABORT)]
    assert not ended
    flight.give_up(FinishReason.ERROR, "why", ["s"])
    assert listener.outputs[-1].error == "why"
    assert ended == [flight]


def test_a_request_without_a_seed_gets_one() -> None:
    seeds = random.Random(1)
    seeded = with_seed(source(temperature=1), seeds)
    assert seeded.params.seed is not None
    assert with_seed(source(temperature=1), random.Random(1)) == seeded
    assert with_seed(source(temperature=1, seed=5), seeds).params.seed == 5
    assert with_seed(source(temperature=0), seeds).params.seed is None
