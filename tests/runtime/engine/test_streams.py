import asyncio
import gc

import pytest

from ramet.runtime.engine.calls import Call, IncrementQueue
from ramet.runtime.engine.sinks import AsyncSink, ThreadSink
from ramet.runtime.engine.streams import AsyncTextStream, TextStream
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    GenerateInput,
    RequestAbortedError,
    SamplingParams,
    TextOutput,
)

CALL = Call("a", [1], (GenerateInput(request_id="a", token_ids=[1], params=SamplingParams()),))
FIRST = TextOutput(request_id="a", text="1")
LAST = TextOutput(request_id="a", text="2", finish_reason=FinishReason.STOP)
ABORTED = TextOutput(request_id="a", finish_reason=FinishReason.ABORT)


def stream(released: list[bool]) -> tuple[TextStream, ThreadSink]:
    sink = ThreadSink()
    return TextStream("a", IncrementQueue(CALL), sink, released.append), sink


def test_it_yields_every_increment_and_is_released_once() -> None:
    released: list[bool] = []
    text, sink = stream(released)
    sink.put([FIRST, LAST])
    assert [item.text for item in text] == ["1", "2"]
    assert next(text, None) is None
    text.close()
    del text
    assert released == [False]
    assert not sink.put([FIRST])


def test_leaving_early_in_any_way_aborts() -> None:
    released: list[bool] = []
    by_close, by_exit, by_drop = (stream(released) for _ in range(3))
    by_close[0].close()
    with by_exit[0]:
        pass
    sink = by_drop[1]
    del by_drop
    gc.collect()
    assert released == [True] * 3
    assert not sink.put([FIRST])
    assert list(by_close[0]) == []


def test_an_error_comes_after_the_text_before_it_and_ends_the_stream() -> None:
    released: list[bool] = []
    text, sink = stream(released)
    sink.put([FIRST, ABORTED])
    assert next(text).text == "1"
    assert next(text).finish_reason is FinishReason.ABORT
    with pytest.raises(RequestAbortedError):
        next(text)
    assert list(text) == []
    assert released == [False]


def test_a_dead_engine_ends_the_stream() -> None:
    released: list[bool] = []
    text, sink = stream(released)
    sink.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        next(text)
    assert released == [True]


def test_coroutines_get_the_same() -> None:
    async def main() -> None:
        released: list[bool] = []
        sink = AsyncSink()
        text = AsyncTextStream("a", IncrementQueue(CALL), sink, released.append)
        sink.put([FIRST, LAST])
        assert [item.text async for item in text] == ["1", "2"]
        assert [item async for item in text] == []
        assert released == [False]

        sink = AsyncSink()
        async with AsyncTextStream("a", IncrementQueue(CALL), sink, released.append) as text:
            sink.put([ABORTED])
            await anext(text)
            with pytest.raises(RequestAbortedError):
                await anext(text)
        await text.aclose()
        assert released == [False, False]

    asyncio.run(main())


def test_cancelling_whoever_waits_aborts() -> None:
    async def main() -> None:
        released: list[bool] = []
        text = AsyncTextStream("a", IncrementQueue(CALL), AsyncSink(), released.append)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(text), 0.01)
        assert released == [True]

    asyncio.run(main())
