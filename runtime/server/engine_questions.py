"""EngineQuestions: what pages ask of the engine again and again, one question at a time."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ENGINE_SECONDS = 2.0
"""How long the engine may take to finish its step; then the page comes without its numbers."""


class EngineQuestions:
    """Asks the engine without waiting for it too long, and never twice at once: a page asks every second, and
    an engine in a long step would otherwise have a thread waiting for each time.
    """

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Task[object]] = {}

    async def ask(self, name: str, question: Callable[[], T]) -> T:
        """What ``question`` returns, run in a thread. Questions of one name have one answer.

        Raises:
            TimeoutError: it took more than ENGINE_SECONDS; whoever asks next waits for the same answer.
        """
        task = self._asked.get(name)
        if task is None or task.done():
            task = self._asked[name] = asyncio.ensure_future(asyncio.to_thread(question))
            task.add_done_callback(lambda done: self._forget(name, done))
        answer: object = await asyncio.wait_for(asyncio.shield(task), ENGINE_SECONDS)
        return answer  # type: ignore[return-value]

    def _forget(self, name: str, done: "asyncio.Task[object]") -> None:
        if self._asked.get(name) is done:
            del self._asked[name]
        if not done.cancelled():
            # It may have come after everyone stopped waiting.
            done.exception()
