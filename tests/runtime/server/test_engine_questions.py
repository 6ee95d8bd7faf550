"""Questions to a slow engine: asked once, and not waited for too long."""

import asyncio
import threading

import pytest

from ramet.runtime.server import engine_questions
from ramet.runtime.server.engine_questions import EngineQuestions


def test_a_slow_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_questions, "ENGINE_SECONDS", 0.01)
    answered = threading.Event()
    asked: list[int] = []

    def slow() -> int:
        asked.append(1)
        assert answered.wait(60)
        return 5

    async def ask() -> None:
        questions = EngineQuestions()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await questions.ask("slow", slow)
        assert await questions.ask("quick", lambda: 7) == 7
        answered.set()
        monkeypatch.setattr(engine_questions, "ENGINE_SECONDS", 60)
        assert await questions.ask("slow", slow) == 5

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert len(asked) in (1, 2)


def test_an_error_is_everyones() -> None:
    def fail() -> int:
        raise ValueError("no")

    async def ask() -> None:
        questions = EngineQuestions()
        both = await asyncio.gather(questions.ask("a", fail), questions.ask("a", fail), return_exceptions=True)
        assert [str(one) for one in both] == ["no", "no"]
        assert await questions.ask("a", lambda: 1) == 1

    asyncio.run(asyncio.wait_for(ask(), 60))
