import asyncio
import threading

import pytest

from ramet.runtime.engine.sinks import AsyncSink, Delivery, Failure, SinkTable, ThreadSink
from ramet.runtime.protocol import EngineDeadError, FinishReason, InvalidRequestError, TextOutput


def out(request_id: str, *, last: bool = False) -> TextOutput:
    return TextOutput(request_id=request_id, text="x", finish_reason=FinishReason.STOP if last else None)


def test_each_sink_gets_its_outputs_of_a_step_in_one_delivery() -> None:
    table, one, two = SinkTable(), ThreadSink(), ThreadSink()
    for key in ("a", "b"):
        table.add(key, one)
    table.add("c", two)
    assert table.deliver([out("a"), out("c"), out("b", last=True), out("unknown")]) == []
    assert one.get() == [out("a"), out("b", last=True)]
    assert two.get() == [out("c")]
    assert "b" not in table
    assert "a" in table
    assert len(table) == 2


def test_requests_of_a_closed_sink_are_to_be_aborted() -> None:
    table, one, two = SinkTable(), ThreadSink(), ThreadSink()
    for key in ("a", "b"):
        table.add(key, one)
    table.add("c", two)
    one.close()
    assert sorted(table.deliver([out("a"), out("c")])) == ["a", "b"]
    assert len(table) == 1


def test_a_refusal_ends_the_whole_submission() -> None:
    table, one, two = SinkTable(), ThreadSink(), ThreadSink()
    for key in ("a", "b"):
        table.add(key, one)
    table.add("c", two)
    error = InvalidRequestError("no")
    assert table.refuse(error, "b") == ["a"]
    assert table.refuse(error, "b") == []
    assert one.get() == Failure(error, "b")
    assert len(table) == 1
    table.forget("c")
    table.forget("c")
    assert len(table) == 0


def test_everyone_is_told_of_the_end_once() -> None:
    table, one, two = SinkTable(), ThreadSink(), ThreadSink()
    for key in ("a", "b"):
        table.add(key, one)
    table.add("c", two)
    error = EngineDeadError("gone")
    table.fail_all(error)
    table.fail_all(EngineDeadError("again"))
    one.put([out("later")])
    assert one.get() == Failure(error)
    assert one.get() == [out("later")]
    assert two.get() == Failure(error)


def test_a_coroutine_waits_for_what_another_thread_puts() -> None:
    async def main() -> list[Delivery]:
        sink = AsyncSink()
        error = EngineDeadError("gone")

        def produce() -> None:
            assert sink.put([out("a")])
            sink.fail(error)

        thread = threading.Thread(target=produce)
        thread.start()
        got = [await sink.get(), await sink.get()]
        thread.join()
        sink.close()
        assert not sink.put([out("a")])
        assert got == [[out("a")], Failure(error)]
        return got

    assert len(asyncio.run(main())) == 2


def test_a_closed_event_loop_counts_as_nobody_listening() -> None:
    async def main() -> AsyncSink:
        return AsyncSink()

    sink = asyncio.run(main())
    assert not sink.put([out("a")])
    sink.fail(EngineDeadError("gone"))


def test_an_async_sink_needs_a_running_loop() -> None:
    with pytest.raises(InvalidRequestError, match="no event loop runs here"):
        AsyncSink()
