from typing import Any

import pytest

from ramet.runtime.engine.calls import (
    Call,
    Collector,
    IncrementQueue,
    LiveCalls,
    failure_of,
    in_batch,
    joined_call,
    refusal,
)
from ramet.runtime.engine.sinks import Failure
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    Logprob,
    PromptTooLongError,
    RequestAbortedError,
    RequestFailedError,
    RequestStats,
    SamplingParams,
    TextOutput,
    TokenLogprobs,
)


def call(request_id: str, *children: str) -> Call:
    inputs = tuple(
        GenerateInput(request_id=key, token_ids=[1], params=SamplingParams())
        for key in (children or (request_id,))
    )
    return Call(request_id, [1], inputs)


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(Logprob(token_id, -1.0, 0))


def ended(
    request_id: str, text: str = "", reason: FinishReason = FinishReason.STOP, **fields: Any
) -> TextOutput:
    return TextOutput(
        request_id=request_id,
        text=text,
        finish_reason=reason,
        stats=RequestStats(num_output_tokens=1),
        **fields,
    )


def test_outputs_come_in_the_calls_order_with_their_answers_by_index() -> None:
    collector = Collector([call("a", "a#0", "a#1"), call("b")])
    collector.add([TextOutput(request_id="b", text="B", token_ids=[1], logprobs=[entry(1)])], keep_errors=False)
    collector.add([ended("b", "b", token_ids=[2], logprobs=[entry(2)], stop_reason=2)], keep_errors=False)
    assert (collector.num_finished, collector.done) == (1, False)
    collector.add([ended("a#1", "two"), ended("a#0", "one", prompt_logprobs=[None])], keep_errors=False)
    assert collector.done
    first, second = collector.outputs()
    assert [item.text for item in first.outputs] == ["one", "two"]
    assert [item.index for item in first.outputs] == [0, 1]
    assert first.prompt_logprobs == [None]
    assert (second.text, second.token_ids, second.stop_reason) == ("Bb", [1, 2], 2)
    assert second.logprobs == [entry(1), entry(2)]
    assert second.finish_reason is FinishReason.STOP
    assert second.stats.num_output_tokens == 1
    assert second.error is None


def test_the_first_failure_is_raised_with_its_place_or_kept() -> None:
    calls = [call("a"), call("b")]
    failed = ended("b", reason=FinishReason.ERROR, error="on fire")
    with pytest.raises(RequestFailedError, match="prompt 1 of the batch: on fire"):
        Collector(calls).add([failed], keep_errors=False)
    collector = Collector(calls)
    collector.add([failed, ended("a", reason=FinishReason.ABORT)], keep_errors=True)
    assert [output.error for output in collector.outputs()] == [None, "on fire"]
    assert collector.outputs()[0].finish_reason is FinishReason.ABORT


def test_a_refusal_names_the_prompt() -> None:
    calls = [call("a", "a#0", "a#1"), call("b")]
    error = PromptTooLongError("too long", field="prompts")
    named = refusal(calls, Failure(error, "b"))
    assert isinstance(named, PromptTooLongError)
    assert (str(named), named.field) == ("prompt 1 of the batch: too long", "prompts")
    assert str(refusal(calls, Failure(error, "a#1"))) == "prompt 0 of the batch: too long"
    assert refusal(calls, Failure(error)) is error
    with pytest.raises(EngineDeadError):
        Collector(calls).add(Failure(EngineDeadError("gone")), keep_errors=True)
    with pytest.raises(PromptTooLongError, match="prompt 0 of the batch"):
        Collector(calls).add(Failure(error, "a#1"), keep_errors=False)
    collector = Collector(calls)
    collector.add(Failure(error, "a#1"), keep_errors=True)
    collector.add([ended("b")], keep_errors=True)
    assert [[item.error for item in output.outputs] for output in collector.outputs()] == [
        ["too long"] * 2,
        [None],
    ]


def test_a_single_prompt_is_not_numbered() -> None:
    error = RequestFailedError("x")
    assert in_batch(error, 0, 1) is error


def test_a_finish_reason_stands_for_an_error() -> None:
    assert failure_of(ended("a")) is None
    assert failure_of(TextOutput(request_id="a")) is None
    assert isinstance(failure_of(ended("a", reason=FinishReason.ABORT)), RequestAbortedError)
    assert str(failure_of(ended("a", reason=FinishReason.ERROR))) == "the request failed"


def test_increments_come_before_the_error_that_ended_them() -> None:
    queue = IncrementQueue(call("a"))
    assert queue.pop() is None
    queue.add([TextOutput(request_id="a", text="1")])
    queue.add([ended("a", "2", reason=FinishReason.ERROR, error="on fire")])
    queue.add(Failure(EngineDeadError("later")))
    assert queue.done
    assert not queue.running
    first, second = queue.pop(), queue.pop()
    assert first is not None
    assert second is not None
    assert (first.text, second.text, second.finish_reason) == ("1", "2", FinishReason.ERROR)
    with pytest.raises(RequestFailedError, match="on fire"):
        queue.pop()
    assert queue.pop() is None


def test_increments_carry_the_answers_index() -> None:
    queue = IncrementQueue(call("a", "a#0", "a#1"))
    queue.add([ended("a#1", "x")])
    states = [queue.done]
    queue.add([ended("a#0", "y")])
    assert [*states, queue.done] == [False, True]
    popped = [queue.pop(), queue.pop()]
    assert [(item.request_id, item.index) for item in popped if item] == [("a", 1), ("a", 0)]


def test_a_failure_leaves_the_other_answers_running() -> None:
    queue = IncrementQueue(call("a", "a#0", "a#1"))
    queue.add([ended("a#1", reason=FinishReason.ABORT)])
    assert queue.done
    assert queue.running


def test_ids_are_unique_among_live_calls() -> None:
    live = LiveCalls()
    live.claim([call("a", "a#0", "a#1")])
    assert live.input_ids("a") == ["a#0", "a#1"]
    assert live.input_ids("a#0") == []
    assert live.input_ids("b") == []
    for request_id in ("a", "a#1"):
        with pytest.raises(InvalidRequestError, match="belongs to a running request"):
            live.claim([call("c"), call(request_id)])
    with pytest.raises(InvalidRequestError, match="'d' belongs"):
        live.claim([call("d"), call("d")])
    live.claim([call("c")])
    live.release([call("a", "a#0", "a#1")])
    live.release([call("a", "a#0", "a#1")])
    live.claim([call("a")])


def test_joined_calls_are_one_with_the_answers_of_all() -> None:
    whole = joined_call("ab", [call("a", "a#0", "a#1"), call("b")])
    assert (whole.request_id, whole.input_ids) == ("ab", ["a#0", "a#1", "b"])
    increments = IncrementQueue(whole)
    increments.add([TextOutput(request_id="b", text="B")])
    increment = increments.pop()
    assert increment is not None
    assert (increment.request_id, increment.index) == ("ab", 2)
