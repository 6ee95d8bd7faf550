"""SupervisedClient: an EngineClient that outlives the deaths of its engine's process."""

import itertools
import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.client import EngineInfo, EngineStats, OutputSink
from ramet.runtime.engine.flights import Flight, with_seed
from ramet.runtime.engine.messages import Ready
from ramet.runtime.engine.remote import RemoteClient
from ramet.runtime.protocol import (
    EngineDeadError,
    EngineRestartingError,
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    RametError,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

StartEngine = Callable[[Callable[[EngineDeadError], None]], RemoteClient]
"""Starts an engine's process; the argument is called once when that has died."""

RESTART_DELAYS = (0.0, 1.0, 5.0)
"""Seconds before each try to start; after the last one the engine is dead for good."""
RESTARTING = "the engine died and is being started again; try again shortly"
SUSPECT_DEATHS = 2
"""Requests that so many engines died with run alone from then on."""


@dataclass(frozen=True, slots=True)
class _Abort:
    """What somebody wants ended: these requests, of the flights that were there then."""

    before: int
    request_ids: frozenset[str]


@dataclass(slots=True)
class _Life:
    """Of one engine's process."""

    is_over: bool = False


class SupervisedClient:
    """Starts the engine again where it dies, and replays what was in flight (see ``flights``).

    Whoever waits sees a pause, not an error. After a second death each request that was there for both runs
    alone; the one that an engine then dies of fails, and the others go on. New requests wait meanwhile. If
    the engine cannot be started any more, everyone gets an EngineDeadError.

    Invariant: a flight that has not ended is in ``_flights``; it is in ``_running`` if the present engine has
    it, else it waits.
    """

    def __init__(self, start: StartEngine, *, seed: int | None = None) -> None:
        """``seed``: where the seeds of requests without one come from; None: from the system's randomness.

        Raises:
            Exception: what the engine's first start raised.
        """
        self._start = start
        self._seeds = random.SystemRandom() if seed is None else random.Random(seed)
        # Never held while a client is called: its thread calls back in here, holding a lock of its own.
        self._lock = threading.RLock()
        self._flights: dict[Flight, int] = {}
        """With the place of each in the order of submissions and aborts."""
        self._order = itertools.count()
        self._aborts: queue.SimpleQueue[_Abort | None] = queue.SimpleQueue()
        self._running: set[Flight] = set()
        self._admitting = False
        self._is_closed = False
        self._death: EngineDeadError | None = None
        self._client: RemoteClient | None = None
        life = _Life()
        first = start(partial(self._on_death, life))
        self._ready = first.ready
        self._take(first, life)
        threading.Thread(target=self._run_aborts, name="ramet-engine-aborts", daemon=True).start()

    @property
    def ready(self) -> Ready:
        """What the first engine said when it was ready."""
        return self._ready

    @property
    def info(self) -> EngineInfo:
        return self._ready.info

    @property
    def pid(self) -> int:
        """Raises EngineRestartingError while there is no engine."""
        return self._present().pid

    def submit(self, inputs: Sequence[GenerateInput], sink: OutputSink) -> None:
        flight = Flight([with_seed(one, self._seeds) for one in inputs], sink, self._on_end)
        with self._lock:
            self._check_open()
            taken = {key for other in self._flights for key in other.request_ids}
            used = next((key for key in flight.request_ids if key in taken), None)
            if used is not None:
                raise InvalidRequestError(
                    f"request_id {used!r} belongs to a running request; choose another one", field="request_id"
                )
            self._flights[flight] = next(self._order)
        self._admit()

    def abort(self, request_ids: Sequence[str]) -> None:
        """Leaves it to a thread: the garbage collector may call it, for a stream that was abandoned, in the
        middle of anything in here."""
        if not self._is_closed:
            self._aborts.put(_Abort(next(self._order), frozenset(request_ids)))

    def check_alive(self) -> None:
        """Raises EngineRestartingError while a new engine starts, EngineDeadError where none will."""
        self._ask(RemoteClient.check_alive)

    def stats(self) -> EngineStats:
        return self._ask(RemoteClient.stats)

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        return self._ask(lambda client: client.cache_outline(salt_prefix))

    def release_session(self, session: str) -> int:
        return self._ask(lambda client: client.release_session(session))

    def flush_cache(self) -> int:
        return self._ask(RemoteClient.flush_cache)

    def check_integrity(self) -> None:
        self._ask(RemoteClient.check_integrity)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
        self._end_all(EngineDeadError("the engine was closed; create a new one"))
        self._aborts.put(None)
        if client is not None:
            client.close()

    def _run_aborts(self) -> None:
        while (wanted := self._aborts.get()) is not None:
            self._abort(wanted)

    def _abort(self, wanted: _Abort) -> None:
        with self._lock:
            # Noted before an engine is told: one that is handed them right now is told behind the submission.
            flights = [flight for flight, order in self._flights.items() if order < wanted.before]
            for flight in flights:
                flight.aborted.update(wanted.request_ids.intersection(flight.request_ids))
            client = self._client
            waiting = [flight for flight in flights if flight not in self._running]
            running = [key for flight in flights if flight in self._running for key in flight.aborted]
        for flight in waiting:
            flight.give_up(FinishReason.ABORT, None, list(wanted.request_ids))
        if client is not None:
            client.abort(running)

    def _check_open(self) -> None:
        if self._death is not None:
            raise EngineDeadError(str(self._death))
        if self._is_closed:
            raise EngineDeadError("the engine was closed; create a new one")

    def _present(self) -> RemoteClient:
        with self._lock:
            self._check_open()
            if self._client is None:
                raise EngineRestartingError(RESTARTING)
            return self._client

    def _ask(self, question: Callable[[RemoteClient], T]) -> T:
        client = self._present()
        try:
            return question(client)
        except EngineDeadError:
            # It died just now, and its successor's start begins.
            self._check_open()
            raise EngineRestartingError(RESTARTING) from None

    def _admit(self) -> None:
        """Hands the engine what may run now. One thread at a time does; the others leave it to that one."""
        with self._lock:
            if self._admitting:
                return
            self._admitting = True
        while (next_up := self._next()) is not None:
            client, flight = next_up
            try:
                if inputs := flight.rest():
                    client.submit(inputs, flight)
                    client.abort(list(flight.aborted))
            except EngineDeadError:
                # Its death has been, or is about to be, reported: the flight waits for the next engine.
                self._forget(client, flight)
            except RametError as error:
                flight.end(error)
            except BaseException:
                with self._lock:
                    self._admitting = False
                raise

    def _next(self) -> tuple[RemoteClient, Flight] | None:
        """The next flight, marked as running; None, once, when nothing may be admitted."""
        with self._lock:
            waiting = [flight for flight in self._flights if flight not in self._running]
            suspects = [flight for flight in waiting if flight.num_deaths >= SUSPECT_DEATHS]
            alone = any(flight.num_deaths >= SUSPECT_DEATHS for flight in self._running)
            blocked = alone or (suspects and self._running)
            if self._client is None or not waiting or blocked:
                self._admitting = False
                return None
            flight = (suspects or waiting)[0]
            self._running.add(flight)
            return self._client, flight

    def _forget(self, client: RemoteClient, flight: Flight) -> None:
        with self._lock:
            self._running.discard(flight)
            if self._client is client:
                self._client = None

    def _on_end(self, flight: Flight) -> None:
        with self._lock:
            self._flights.pop(flight, None)
            self._running.discard(flight)
        self._admit()

    def _on_death(self, life: _Life, death: EngineDeadError) -> None:
        """Called by a client's thread, which ends then."""
        with self._lock:
            life.is_over = True
            self._client = None
            if self._is_closed:
                return
            running = [flight for flight in self._flights if flight in self._running]
            self._running.clear()
            for flight in running:
                flight.num_deaths += 1
        logger.error("%s; starting it again with %d requests in flight", death, len(running))
        if len(running) == 1 and running[0].num_deaths >= SUSPECT_DEATHS:
            (culprit,) = running
            message = f"the engine died {culprit.num_deaths} times while it ran this request: {death}"
            culprit.give_up(FinishReason.ERROR, message, culprit.request_ids)
        threading.Thread(target=self._restart, name="ramet-engine-supervisor", daemon=True).start()

    def _restart(self) -> None:
        error: Exception | None = None
        for delay in RESTART_DELAYS:
            time.sleep(delay)
            if self._is_closed:
                return
            life = _Life()
            try:
                client = self._start(partial(self._on_death, life))
            except Exception as failure:
                # Whatever keeps it from starting, it is told to everyone who waits.
                logger.exception("the engine could not be started again")
                error = failure
                continue
            logger.warning("the engine is back")
            self._take(client, life)
            return
        death = EngineDeadError(f"the engine died and could not be started again: {error}")
        with self._lock:
            self._death = death
        self._end_all(death)

    def _take(self, client: RemoteClient, life: _Life) -> None:
        with self._lock:
            closed = self._is_closed
            # One that has died already has had its successor's start begun.
            if not closed and not life.is_over:
                self._client = client
        if closed:
            client.close()
        else:
            self._admit()

    def _end_all(self, death: EngineDeadError) -> None:
        with self._lock:
            flights = deque(self._flights)
            self._flights.clear()
            self._running.clear()
        for flight in flights:
            flight.end(death)
