"""Runtime: a server of its own for a script."""

import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import IO

import httpx

from ramet.lang.backends.endpoint import RuntimeEndpoint
from ramet.lang.backends.http_client import Connection
from ramet.runtime.env import child_environment
from ramet.runtime.protocol import EngineDeadError
from ramet.runtime.protocol.wire import HEALTH_ROUTE

Option = str | int | float | bool | Sequence[str] | None

STOP_TIMEOUT = 30.0
"""Seconds in which the server ends by itself when it is told to."""
POLL_INTERVAL = 0.1
SHOWN_LOG_CHARS = 4000
COMMAND = (sys.executable, "-c", "from ramet.runtime.cli import main; main()")


class Runtime(RuntimeEndpoint):
    """Starts ``ramet serve`` in a process of its own, waits until it answers, and is its RuntimeEndpoint. The
    server listens on this machine only, takes no key but its own, and ends with ``close`` (or the ``with``
    block), with this object, or with the interpreter.

    Args:
        model: as for ``ramet serve``; None: its default.
        port: None: one that is free.
        start_timeout: seconds until the server has to answer; loading a large model takes minutes.
        connection: timeout, retries and how many requests run at once.
        command: how ramet is called; something like numactl may stand in front.
        options: those of ``ramet serve``, with underscores for dashes: ``context_length=4096``;
            and ``model_path`` for the model.

    Raises:
        EngineDeadError: the server ended, or did not answer in time; the message has the end of what it said.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        port: int | None = None,
        start_timeout: float = 600.0,
        connection: Connection | None = None,
        command: Sequence[str] = COMMAND,
        **options: Option,
    ) -> None:
        port = _free_port() if port is None else port
        self.api_key = secrets.token_urlsafe(24)
        """What other clients of the server have to send."""
        # A program of SGLang's says model_path.
        model = model or _text(options.pop("model_path", None))
        fixed = {"model": model, "host": "127.0.0.1", "port": port, "start_timeout": start_timeout}
        arguments = arguments_of({**fixed, **options})
        # The file goes on as long as somebody writes to it or reads it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, "serve", *arguments],
            env=child_environment(RAMET_API_KEY=self.api_key),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the script: it ends the server when it ends itself.
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _stop, self._process, self._log)
        try:
            self._wait(f"http://127.0.0.1:{port}", start_timeout)
            super().__init__(f"http://127.0.0.1:{port}", self.api_key, connection=connection)
        except BaseException:
            self._finalizer()
            raise

    @property
    def process_id(self) -> int:
        return self._process.pid

    async def aclose(self) -> None:
        """Closes the connections and ends the server. Closing twice is allowed."""
        await super().aclose()
        self._finalizer()

    def shutdown(self) -> None:
        """As ``close``: SGLang's word for it."""
        self.close()

    def _wait(self, url: str, start_timeout: float) -> None:
        deadline = time.monotonic() + start_timeout
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise EngineDeadError(f"the server ended with code {code} before it answered:\n{self._said()}")
            try:
                if httpx.get(url + HEALTH_ROUTE, timeout=5.0).status_code == 200:
                    return
            except httpx.TransportError:
                # It does not listen yet.
                time.sleep(POLL_INTERVAL)
            else:
                time.sleep(POLL_INTERVAL)
        raise EngineDeadError(
            f"the server did not answer within start_timeout={start_timeout:g} s; it said:\n{self._said()}"
        )

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-SHOWN_LOG_CHARS:]


def arguments_of(options: Mapping[str, Option]) -> list[str]:
    """The command line of ``ramet serve``. None is left out; a bool is a switch; of a list each has its
    turn."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                continue
            case bool():
                arguments.append(f"--{flag}" if value else f"--no-{flag}")
            case str() | int() | float():
                arguments += [f"--{flag}", str(value)]
            case _:
                arguments += [part for one in value for part in (f"--{flag}", one)]
    return arguments


def _text(option: Option) -> str | None:
    return None if option is None else str(option)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stop(process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    log.close()
