"""Sessions: interruption from outside, as by Ctrl-C."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
    import os, signal, sys, threading
    from ramet.lang import function, gen
    from ramet.lang.backends.scripted import Reply, ScriptedBackend

    backend = ScriptedBackend(Reply("never", delay=600))

    def interrupt():
        while backend.num_running < {calls}:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    @function
    def sync_program(s, i=0):
        branches = s.fork(20)
        branches += gen("a")
        branches.join()
        s["a"]

    @function
    async def async_program(s, i=0):
        branches = s.fork(20)
        branches += gen("a")
        await branches[3].aio.get("a")

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        {run}
    except KeyboardInterrupt:
        print("interrupted", backend.num_running, sorted({{call.state for call in backend.calls}}))
"""


@pytest.mark.parametrize(
    ("run", "calls"),
    [
        ("sync_program.run(backend=backend)", 20),
        ("async_program.run(backend=backend)", 20),
        ("sync_program.run_batch([{}] * 4, backend=backend)", 80),
        ("async_program.run_batch([{}] * 4, backend=backend)", 80),
    ],
)
def test_ctrl_c_ends_everything_and_is_raised(run: str, calls: int) -> None:
    code = textwrap.dedent(PROGRAM).format(run=run, calls=calls)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "interrupted 0 ['cancelled']\n"
    assert done.returncode != -signal.SIGINT
