"""Signals wake threads and coroutines, and no notice is missed."""

import _thread
import asyncio
import threading

import pytest

from ramet.lang.signals import Signal, Steps, finish, finish_async


class Counter:
    def __init__(self) -> None:
        self.value = 0
        self.signal = Signal()

    def reaching(self, value: int) -> Steps[int]:
        yield self.signal, lambda: self.value >= value
        return self.value

    def increase(self) -> None:
        self.value += 1
        self.signal.notify()


def test_threads_and_coroutines_see_every_change() -> None:
    counter = Counter()
    seen: list[int] = []

    def count() -> None:
        for value in range(1, 301):
            seen.append(finish(counter.reaching(value)))

    async def count_async() -> list[int]:
        return [await finish_async(counter.reaching(value)) for value in range(1, 301)]

    async def main() -> list[list[int]]:
        waiting = [asyncio.create_task(count_async()) for _ in range(3)]
        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            counter.increase()
            await asyncio.sleep(0)
        results = await asyncio.gather(*waiting)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        return results

    results = asyncio.run(main())
    assert len(seen) == 900
    assert all(len(values) == 300 and values == sorted(values) for values in results)


def test_a_waiter_whose_loop_is_gone_does_no_harm() -> None:
    counter = Counter()

    async def give_up() -> None:
        task = asyncio.create_task(finish_async(counter.reaching(1)))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    counter.increase()
    assert finish(counter.reaching(1)) == 1


def test_an_interrupt_that_wakes_nobody_is_heard() -> None:
    """As of a signal that comes in the moment before the main thread blocks."""
    signal, ended = Signal(), threading.Event()

    def give_up() -> None:
        ended.set()
        signal.notify()

    rescue = threading.Timer(30, give_up)
    rescue.daemon = True
    rescue.start()
    threading.Timer(0.05, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        signal.wait(ended.is_set)
    rescue.cancel()
    assert not ended.is_set()
