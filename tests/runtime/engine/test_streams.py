import asyncio
import gc
import threading

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


@pytest.mark.parametrize("end", [LAST, ABORTED])
def test_all_who_read_one_stream_hear_of_its_end(end: TextOutput) -> None:
    text, sink = stream([])
    heard: list[str] = []

    def read() -> None:
        try:
            for item in text:
                heard.append(item.text)
        except RequestAbortedError:
            heard.append("error")

    readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for reader in readers:
        reader.start()
    sink.put([FIRST])
    sink.put([end])
    for reader in readers:
        reader.join(20.0)
    assert not any(reader.is_alive() for reader in readers)
    assert sorted(heard) == (["1", "2"] if end is LAST else ["", "1", "error"])


def test_all_coroutines_that_read_one_stream_hear_of_its_end() -> None:
    async def main() -> list[list[str]]:
        sink = AsyncSink()
        text = AsyncTextStream("a", IncrementQueue(CALL), sink, lambda running: None)

        async def read() -> list[str]:
            return [item.text async for item in text]

        readers = [asyncio.create_task(read()) for _ in range(4)]
        await asyncio.sleep(0)
        sink.put([FIRST])
        sink.put([LAST])
        return await asyncio.wait_for(asyncio.gather(*readers), 20.0)

    assert sorted(item for heard in asyncio.run(main()) for item in heard) == ["1", "2"]


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
