"""The engine that tells of its calls, also of those that another one answers."""

import asyncio

import pytest

from ramet.lang.telling import TellingEngine, Told
from ramet.runtime.protocol import ProgramTag, PromptTooLongError, SamplingParams, programs
from tests.lang.backends.random_engine import CONTEXT, open_random
from tests.lang.backends.small_tokenizer import CHATML, small_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
FIRST, SECOND, THIRD = (ProgramTag(branch=name) for name in ("1", "2", "3"))
VARIABLES = {("1", 0): "x", ("2", 0): "y", ("3", 0): "z"}


def answers(told: list[Told], variable: str) -> list[tuple[str, list[int], object]]:
    """Of each index: the text, the ids and the reason of the end."""
    found: dict[int, tuple[str, list[int], object]] = {}
    for event in told:
        if isinstance(event, programs.CallDelta) and event.variable == variable:
            text, ids, _ = found.get(event.event.index, ("", [], None))
            increment = event.event
            found[increment.index] = text + increment.text, ids + increment.token_ids, increment.finish_reason
    return [found[index] for index in sorted(found)]


def test_the_engine_that_tells_passes_everything_on() -> None:
    with open_random(small_tokenizer(CHATML)).face as face:
        telling = TellingEngine(face, lambda event: None, {})
        assert telling.info is face.info
        assert telling.tokenizer is face.tokenizer
        assert telling.flush_cache() == 0
        assert telling.stats() == face.stats()

        async def generate() -> None:
            await telling.agenerate([[5, 6]], GREEDY, cache_salt="")
            with pytest.raises(KeyError):
                telling.astream([5], GREEDY, tag=ProgramTag(branch="9"), priority=0, cache_salt="")

        asyncio.run(generate())
        telling.close()
        with pytest.raises(Exception, match="closed"):
            face.check_alive()


@pytest.mark.parametrize("num_answers", [1, 3])
@pytest.mark.parametrize("joins_after", [0, 2, 1000])
def test_who_is_answered_by_another_call_is_told_all_of_it(num_answers: int, joins_after: int) -> None:
    """Before its first increment, in the middle, and when it has ended."""
    params = SamplingParams(seed=1, n=num_answers, max_tokens=5, logprobs=1)
    told: list[Told] = []

    async def generate(telling: TellingEngine) -> None:
        stream = telling.astream([5, 6], params, tag=FIRST, priority=0, cache_salt="")
        position = 0
        if not joins_after:
            telling.share(FIRST, SECOND)
        async with stream:
            async for _ in stream:
                position += 1
                if position == joins_after:
                    telling.share(FIRST, SECOND)
        if joins_after == 1000:
            telling.share(FIRST, SECOND)
        telling.share(FIRST, THIRD)

    with open_random(small_tokenizer(CHATML)).face as face:
        asyncio.run(generate(TellingEngine(face, told.append, VARIABLES)))
        assert face.stats().finished_requests == num_answers
    expected = answers(told, "x")
    assert len(expected) == num_answers
    assert all(len(ids) == 5 for _, ids, _ in expected)
    assert answers(told, "y") == answers(told, "z") == expected
    last = [event for event in told if event.variable == "z"]
    assert len(last) == num_answers
    for event in last:
        assert isinstance(event, programs.CallDelta)
        assert event.event.logprobs is not None
        assert len(event.event.logprobs) == 5
        assert event.event.stats is not None


def test_scores_and_failures_are_told_to_all_too() -> None:
    told: list[Told] = []

    async def generate(telling: TellingEngine) -> None:
        stream = telling.astream([5] * CONTEXT, GREEDY, tag=FIRST, priority=0, cache_salt="")
        async with stream:
            async for _ in stream:
                pass

    async def ask(telling: TellingEngine) -> None:
        telling.share(FIRST, SECOND)
        await telling.ascore([5, 6], [[7], [8]], tag=FIRST, priority=0, cache_salt="")
        with pytest.raises(PromptTooLongError):
            await generate(telling)
        telling.share(FIRST, THIRD)

    with open_random(small_tokenizer(CHATML)).face as face:
        asyncio.run(ask(TellingEngine(face, told.append, VARIABLES)))
    kinds = [
        [(type(event), event.number) for event in told if event.variable == variable] for variable in "xyz"
    ]
    assert kinds == [[(programs.CallScores, 0), (programs.CallFailed, 1)]] * 3
