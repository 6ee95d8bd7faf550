"""What is kept of programs that have ended: whose it is, how long, and how much."""

import asyncio
from collections.abc import Callable

from ramet.runtime.protocol import programs
from ramet.runtime.server.kept_programs import MAX_KEPT, MAX_KEPT_CHARS, KeptPrograms
from ramet.runtime.server.program_record import ProgramRecord


def ended(program_id: str, text: str = "") -> ProgramRecord:
    record = ProgramRecord(program_id, "program", "m", background=True, created=1)
    record.take(programs.VariableDone(variable="x", value=text))
    record.end(programs.ProgramDone(id=program_id, status="completed"), 2)
    return record


def on_a_loop(body: Callable[[], None]) -> None:
    async def main() -> None:
        body()

    asyncio.run(main())


def test_each_tenant_has_its_own() -> None:
    def body() -> None:
        kept = KeptPrograms()
        record = ended("p")
        kept.keep("a", "p", record)
        assert kept.get("a", "p") is record
        assert (kept.get("b", "p"), kept.of("b"), kept.drop("b", "p")) == (None, [], False)
        assert kept.of("a") == [record]
        assert kept.drop("a", "p")
        assert (len(kept), kept.drop("a", "p")) == (0, False)

    on_a_loop(body)


def test_there_are_so_many_of_each() -> None:
    def body() -> None:
        kept = KeptPrograms()
        kept.keep("b", "other", ended("other"))
        for number in range(MAX_KEPT + 3):
            kept.keep("a", str(number), ended(str(number)))
        assert len(kept.of("a")) == MAX_KEPT
        assert kept.get("a", "2") is None
        assert kept.get("a", "3") is not None
        assert len(kept.of("b")) == 1

    on_a_loop(body)


def test_they_hold_so_much_and_the_last_one_in_any_case() -> None:
    def body() -> None:
        kept = KeptPrograms()
        half = "x" * (MAX_KEPT_CHARS // 2)
        for name in ("first", "second", "third"):
            kept.keep("a", name, ended(name, half))
        assert kept.get("a", "first") is None
        assert len(kept) == 2
        kept.keep("a", "huge", ended("huge", half * 3))
        assert [one.summary().id for one in kept.of("a")] == ["huge"]

    on_a_loop(body)


def test_they_go_after_a_while() -> None:
    async def main() -> None:
        kept = KeptPrograms(0.02)
        kept.keep("a", "p", ended("p"))
        async with asyncio.timeout(30.0):
            while len(kept):
                await asyncio.sleep(0.01)

    asyncio.run(main())
