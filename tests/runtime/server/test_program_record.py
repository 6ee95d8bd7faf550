"""A record says of a run what its events said, whenever it is asked."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import programs
from ramet.runtime.protocol.wire import ErrorDetail
from ramet.runtime.server.errors import deadline_exceeded
from ramet.runtime.server.program_record import ProgramFeed, ProgramRecord, Reader

ERROR = ErrorDetail(message="no")
DONE = programs.ProgramDone(id="p", status="completed")
CALLED = programs.ToolCallsMade(variable="t", calls=[programs.ToolCalled(id="1", name="look", arguments="{}")])


def record() -> ProgramRecord:
    return ProgramRecord("p", "name", "m", background=True, created=7)


def read(reader: Reader) -> list[object]:
    return [reader.get_nowait() for _ in range(reader.qsize())]


def folded(events: list[object]) -> tuple[dict[str, str], dict[str, object]]:
    """What grows, and what has come."""
    partial: dict[str, str] = {}
    settled: dict[str, object] = {}
    for event in events:
        match event:
            case programs.VariableDelta(variable=name, text=text):
                partial[name] = partial.get(name, "") + text
            case programs.VariableDone(variable=name) | programs.VariableFailed(variable=name):
                partial.pop(name, None)
                settled[name] = event
    return partial, settled


def test_it_waits_for_tools_until_they_are_answered_or_do_not_matter() -> None:
    one = record()
    assert one.status == "running"
    one.take(CALLED)
    assert (one.status, one.state().tool_calls) == ("waiting", [CALLED])
    one.answered("t")
    assert (one.status, one.state().tool_calls) == ("running", [])
    one.take(CALLED)
    one.take(programs.VariableFailed(variable="t", error=ERROR))
    assert one.status == "running"
    one.take(CALLED)
    one.end(programs.ProgramDone(id="p", status="cancelled"), 9)
    assert (one.status, one.state().tool_calls) == ("cancelled", [])


def test_the_end_and_why() -> None:
    completed, failed, late = record(), record(), record()
    completed.end(DONE, 9)
    failed.end(programs.ProgramDone(id="p", status="failed", error=ERROR), 9)
    late.end(deadline_exceeded(3.0), 9)
    assert [one.status for one in (completed, failed, late)] == ["completed", "failed", "failed"]
    assert completed.state().error is None
    assert failed.state().error == ERROR
    assert (late.state().error or ERROR).code == "deadline_exceeded"
    summary = completed.summary()
    assert (summary.created_at, summary.ended_at, summary.name, summary.background) == (7, 9, "name", True)


def test_calls_are_not_recorded() -> None:
    one = record()
    one.take(programs.CallFailed(variable="x", number=0, error=ERROR))
    assert (one.replay(), one.num_chars) == ([], 0)


NAMES = st.sampled_from("abc")
EVENTS = st.one_of(
    st.builds(lambda name, text: programs.VariableDelta(variable=name, text=text), NAMES, st.text(max_size=5)),
    st.builds(lambda name, text: programs.VariableDone(variable=name, value=text), NAMES, st.text(max_size=5)),
    st.builds(lambda name: programs.VariableFailed(variable=name, error=ERROR), NAMES),
)


@given(st.lists(EVENTS, max_size=20), st.integers(0, 20))
def test_whoever_comes_later_comes_to_the_same(events: list[programs.ProgramEvent], late: int) -> None:
    # A variable that has come grows no more.
    seen: set[str] = set()
    told: list[programs.ProgramEvent] = []
    for event in events:
        name = getattr(event, "variable", "")
        if name not in seen:
            told.append(event)
        if not isinstance(event, programs.VariableDelta):
            seen.add(name)

    async def main() -> None:
        feed = ProgramFeed(record())
        first = feed.follow()
        for event in told[:late]:
            feed.tell(event)
        second = feed.follow()
        for event in told[late:]:
            feed.tell(event)
        feed.end(DONE)
        early, later, after = read(first), read(second), read(feed.follow())
        assert folded(early) == folded(later) == folded(after)
        assert early[-1] is later[-1] is after[-1] is DONE
        partial, settled = folded(early)
        state = feed.record.state()
        assert state.partial == partial
        assert {**state.variables, **state.failures}.keys() == settled.keys()
        values = [one.value for one in settled.values() if isinstance(one, programs.VariableDone)]
        assert feed.record.num_chars == sum(map(len, [*partial.values(), *values]))

    asyncio.run(main())
