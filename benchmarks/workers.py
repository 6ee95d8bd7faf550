"""One process per engine under test, so that their thread pools, memory and caches cannot disturb one another.

Only one worker computes at a time: the others wait on their pipe, without spinning.
"""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Handler = Callable[..., Any]
Factory = Callable[..., dict[str, Handler]]
"""Called in the worker with its settings; returns what can be called there. Must be importable by name."""


class WorkerError(Exception):
    """The worker failed; the message ends with its own last line, and ``details`` is its traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Worker:
    """A spawned process that answers calls, one after the other. Not thread-safe."""

    def __init__(self, name: str, factory: Factory, **settings: Any) -> None:
        """Starts the process and waits until ``factory(**settings)`` has returned there.

        Raises:
            WorkerError: the factory raised, or the process died.
        """
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # Not a daemon: an engine may start processes of its own.
        self._process = context.Process(target=_serve, args=(theirs, factory, settings), name=name)
        self._process.start()
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Raises WorkerError where the function raised, the process died, or ``timeout`` seconds passed."""
        self._pipe.send((function, arguments))
        if timeout is not None and not self._pipe.poll(timeout):
            self._process.kill()
            self.close()
            raise WorkerError(f"{self.name} was stopped after {timeout:.0f} s")
        return self._receive()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        """Ends the process: politely, then not. Closing twice is allowed."""
        if not self._pipe.closed:
            self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _receive(self) -> Any:
        try:
            failed, value = self._pipe.recv()
        except EOFError:
            self._process.join(5)
            raise WorkerError(
                f"the process of {self.name} died with exit code {self._process.exitcode}"
            ) from None
        if failed:
            raise WorkerError(f"{self.name}: {value.strip().splitlines()[-1]}", value)
        return value


def _serve(pipe: Connection, factory: Factory, settings: dict[str, Any]) -> None:
    try:
        handlers = factory(**settings)
    except Exception:
        pipe.send((True, traceback.format_exc()))
        return
    pipe.send((False, None))
    try:
        while True:
            function, arguments = pipe.recv()
            pipe.send(_answer(handlers, function, arguments))
    except (EOFError, BrokenPipeError):
        # The benchmark has closed its end.
        pass
    finally:
        if "close" in handlers:
            handlers["close"]()


def _answer(handlers: dict[str, Handler], function: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return False, handlers[function](*arguments)
    except Exception:
        return True, traceback.format_exc()
