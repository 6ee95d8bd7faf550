"""The engine's process as its parent sees it: started, watched, ended, and everything of it removed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.protocol import EngineDeadError

TERMINATE_SECONDS = 5.0
"""How long a process may take to end by itself, and then again after SIGTERM."""
MAX_SOCKET_PATH = 100
"""sockaddr_un holds 108 bytes on Linux, 104 on macOS."""

# Not `python -m`: the child finds ramet, and a builder, wherever the parent's sys.path finds them. The parent's
# main module is not imported, so a script needs no guard, and an interactive session works.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ramet.runtime.engine.worker import main; main(sys.argv[2])"
)


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told on its command line."""

    requests_address: str
    replies_address: str
    directory: str
    """Removed by the child if its parent dies."""
    life_fd: int
    """A pipe's writing end that the child holds open: its end tells the parent of the child's end."""
    parent_pid: int
    builder: str
    """``module:function`` that takes the EngineConfig and returns a BuiltEngine."""
    config: EngineConfig


class EngineChild:
    """A running child process with a private folder for its socket.

    The child ends by itself when its stdin, a pipe that only the parent writes to, is closed; so it never
    outlives the parent.
    """

    def __init__(self, config: EngineConfig, builder: str) -> None:
        self.directory = private_directory()
        self.requests_address = f"ipc://{self.directory / 'requests'}"
        self.replies_address = f"ipc://{self.directory / 'replies'}"
        self.life_fd, child_fd = os.pipe()
        options = WorkerOptions(
            requests_address=self.requests_address,
            replies_address=self.replies_address,
            directory=str(self.directory),
            life_fd=child_fd,
            parent_pid=os.getpid(),
            builder=builder,
            config=config,
        )
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        try:
            # A session of its own: Ctrl-C in the parent's terminal is the parent's to handle.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, path, msgspec.json.encode(options).decode()],
                stdin=subprocess.PIPE,
                pass_fds=(child_fd,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self.life_fd)
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        finally:
            os.close(child_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, *, told: bool) -> None:
        """Make the process end, remove its folder. ``told``: it knows already, and gets time to end by itself.

        Returns within 2 * TERMINATE_SECONDS + 1.
        """
        if not (told and self._ended_within(TERMINATE_SECONDS)):
            self._process.terminate()
            if not self._ended_within(TERMINATE_SECONDS):
                self._process.kill()
                self._ended_within(1.0)
        if self._process.stdin is not None:
            self._process.stdin.close()
        os.close(self.life_fd)
        shutil.rmtree(self.directory, ignore_errors=True)

    def exited_by_itself(self) -> bool:
        """Whether the process has ended, within TERMINATE_SECONDS, and not by a signal."""
        return self._ended_within(TERMINATE_SECONDS) and self._process.returncode >= 0

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def death(self) -> EngineDeadError:
        """How the process ended, once it has."""
        code = self._process.returncode
        if code is None:
            return EngineDeadError("the engine's process does not answer and could not be ended")
        if code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
                hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
                return EngineDeadError(f"the engine's process was killed: exit code {code}, {name}{hint}")
        return EngineDeadError(f"the engine's process ended: exit code {code}")


def private_directory() -> Path:
    """A new folder that only this user may enter, with a path short enough for a socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="ramet-"))
    if len(os.fsencode(directory)) <= MAX_SOCKET_PATH - len("/requests"):
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="ramet-", dir="/tmp"))
