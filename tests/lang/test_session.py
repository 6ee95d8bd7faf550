"""Sessions: interruption from outside, as by Ctrl-C, and the interpreter's exit."""

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


EXITING = """
    import sys, threading, time
    from ramet.lang import function, gen
    from ramet.lang.backends.scripted import Reply, ScriptedBackend

    backend = ScriptedBackend({{"a": "first words", "b": Reply("never", delay=600)}})

    @function
    def reads(s):
        s += gen("a")
        s += s["a"] + gen("b")
        s["b"]

    @function
    def goes_on(s):
        s += gen("b")
        try:
            s["b"]
        finally:
            s += "and more"

    @function
    def blocks(s):
        s += gen("a")
        s["a"]
        threading.Event().wait()

    @function
    async def awaits(s):
        s += gen("a")
        await s.aio.get("a")
        s += gen("b")
        await s.aio.get("b")

    {code}
    print("last line")
"""


@pytest.mark.parametrize(
    "code",
    [
        "state = reads.stream(backend=backend)",
        "state = reads.stream(backend=backend); state['a']",
        "next(reads.stream(backend=backend).text_iter('a'))",
        "state = reads.stream(backend=backend); pieces = state.text_iter(); next(pieces)",
        "state = goes_on.stream(backend=backend); time.sleep(0.05)",
        "state = blocks.stream(backend=backend); state['a']",
        "state = awaits.stream(backend=backend); state['a']",
        "states = [program.stream(backend=backend) for program in (reads, goes_on, awaits)] * 5",
        "awaits.run_batch([], backend=backend); state = awaits.stream(backend=backend); state['a']",
        "states = iter(reads.run_batch([{}] * 3, backend=backend, generator_style=True))",
    ],
)
def test_the_interpreter_exits_while_programs_run(code: str) -> None:
    """They are cancelled, and nothing is said of it: that is what leaving them meant."""
    program = textwrap.dedent(EXITING).format(code=code)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("last line\n", "", 0)
