"""EngineProcess with a core that only counts: starting, dying, closing, and being left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.engine import EngineProcess
from ramet.runtime.protocol import (
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    ModelLoadError,
    RequestAbortedError,
    UnsupportedModelError,
)

ROOT = Path(__file__).resolve().parents[3]
BUILDERS = "tests.runtime.engine.builders"
FOREVER = 10**9
SECONDS = 60.0


@pytest.fixture(autouse=True)
def private_temp(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sockets go into a folder of the test's own, which has to be empty again afterwards."""
    tmp_path_factory.getbasetemp()  # made before the folder below takes its place
    monkeypatch.syspath_prepend(str(ROOT))
    folder = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not list(folder.iterdir()))
    folder.rmdir()


def wait_until(condition: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def start(builder: str = "counting", **settings: Any) -> EngineProcess:
    return EngineProcess("fake", builder=f"{BUILDERS}:{builder}", start_timeout=60, **settings)


def is_gone(pid: int) -> bool:
    """Ended. An orphan counts too that nobody waits for, as in a container whose first process is no init."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with start() as engine:
        yield engine


def test_it_has_the_faces_of_an_engine_in_process(engine: EngineProcess) -> None:
    assert engine.info.model == "fake"
    assert engine.generate("x", max_tokens=3).text == "0 1 2 "
    outputs = engine.generate(["x", [1, 2]], max_tokens=2)
    assert [output.text for output in outputs] == ["0 1 ", "0 1 "]
    assert [output.prompt_token_ids for output in outputs] == [[120], [1, 2]]
    assert [item.text for item in engine.stream("x", max_tokens=2)] == ["0 ", "1 "]
    assert engine.chat([{"role": "user", "content": "hi"}], max_tokens=1).text == "0 "
    assert engine.flush_cache() == 7
    assert engine.stats().running_requests == 0
    engine.check_integrity()
    engine.check_alive()
    assert engine.tokenizer_spec.eos_id == 257


def test_settings_reach_the_child() -> None:
    with start(kv_tokens=77) as engine:
        assert engine.info.kv_tokens == 77


def test_a_refusal_comes_back_with_its_place(engine: EngineProcess) -> None:
    with pytest.raises(InvalidRequestError, match="prompt 1 of the batch: 13 is refused") as caught:
        engine.generate([[1], [13]], max_tokens=FOREVER)
    assert caught.value.field == "prompts"
    assert engine.stats().running_requests == 0
    with pytest.raises(InvalidRequestError, match=r"token id 0 is 300") as caught:
        engine.generate([300])
    assert caught.value.field == "prompts"


def test_abort_and_abandoned_streams_end_the_request(engine: EngineProcess) -> None:
    stream = engine.stream("x", max_tokens=FOREVER, request_id="mine")
    next(stream)
    engine.abort("mine")
    with pytest.raises(RequestAbortedError):
        for _ in stream:
            pass
    for _ in engine.stream("x", max_tokens=FOREVER):
        break
    wait_until(lambda: engine.stats().running_requests == 0)


def test_coroutines(engine: EngineProcess) -> None:
    async def main() -> None:
        outputs = await asyncio.gather(*(engine.agenerate("x", max_tokens=count) for count in (1, 2, 3)))
        assert [output.text for output in outputs] == ["0 ", "0 1 ", "0 1 2 "]
        assert [item.text async for item in engine.astream("x", max_tokens=2)] == ["0 ", "1 "]
        task = asyncio.create_task(engine.agenerate("x", max_tokens=FOREVER))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: engine.stats().running_requests == 0)


@pytest.mark.parametrize(
    ("builder", "kind", "message"),
    [
        ("no_such_model", ModelLoadError, "fake is not there; install it"),
        ("unsupported", UnsupportedModelError, "NewForCausalLM is not implemented"),
        ("missing_file", FileNotFoundError, "weights.gguf"),
        ("strange", EngineDeadError, "StrangeError: what"),
        ("exits", EngineDeadError, "the engine's process ended: exit code 7"),
        ("nothing", AttributeError, "has no attribute 'nothing'"),
    ],
)
def test_what_goes_wrong_at_the_start_comes_back(builder: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        start(builder)
    assert type(caught.value) is kind


def test_settings_are_checked_before_anything_is_started() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean kv_tokens"):
        start(kv_token=5)


def test_a_start_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(EngineDeadError, match="was not ready after 1 s; raise start_timeout"):
        EngineProcess("fake", builder=f"{BUILDERS}:never_ready", start_timeout=1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_ends_everyone_who_waits_at_once(number: signal.Signals) -> None:
    engine = start("slow")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            engine.generate("x", max_tokens=FOREVER)
        except EngineDeadError as error:
            errors.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    stream = engine.stream("x", max_tokens=FOREVER)
    assert next(stream).text == "0 "
    wait_until(lambda: engine.stats().running_requests == 4)
    os.kill(engine.pid, number)
    with pytest.raises(EngineDeadError, match=rf"was killed: exit code -{number}, {number.name}"):
        for _ in stream:
            pass
    for waiter in waiters:
        waiter.join()
    assert len(errors) == 3
    for later in (engine.stats, engine.flush_cache, lambda: engine.generate("x"), lambda: engine.stream("x")):
        with pytest.raises(EngineDeadError, match=f"exit code -{number}"):
            later()
    engine.abort("x")
    assert is_gone(engine.pid)
    engine.close()


def test_a_killed_process_ends_coroutines_too() -> None:
    engine = start("slow")

    async def main() -> None:
        task = asyncio.create_task(engine.agenerate(["x", "y"], max_tokens=FOREVER))
        stream = engine.astream("x", max_tokens=FOREVER)
        await anext(stream)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="exit code -9"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="exit code -9"):
            await task

    asyncio.run(main())
    engine.close()


def test_an_engine_that_fails_in_the_child_says_why() -> None:
    engine = start("failing_core")
    assert engine.generate("ok", max_tokens=5).text == "0 1 2 3 4 "
    with pytest.raises(EngineDeadError, match="the engine failed: ZeroDivisionError: cause"):
        engine.generate("Bad", max_tokens=FOREVER)
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        engine.stats()
    engine.close()
    assert is_gone(engine.pid)


def test_closing_ends_what_runs_and_the_process() -> None:
    engine = start()
    stream = engine.stream("x", max_tokens=FOREVER)
    next(stream)
    engine.close()
    engine.close()
    assert is_gone(engine.pid)
    with pytest.raises(EngineDeadError, match="was closed"):
        for _ in stream:
            pass
    with pytest.raises(EngineDeadError, match="was closed"):
        engine.generate("x")


def test_closing_ends_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.runtime.engine.child.TERMINATE_SECONDS", 0.3)
    engine = start("stuck_step")
    engine.stream("x")
    engine.close()
    assert is_gone(engine.pid)


def test_an_engine_that_is_dropped_ends_its_process() -> None:
    engine = start()
    pid = engine.pid
    del engine
    wait_until(lambda: is_gone(pid))


def test_a_stream_keeps_its_engine() -> None:
    assert [item.text for item in start().stream("x", max_tokens=2)] == ["0 ", "1 "]


def test_two_engines_at_once() -> None:
    with start() as one, start(kv_tokens=9) as two:
        assert one.generate("x", max_tokens=1).text == two.generate("x", max_tokens=1).text
        assert (one.info.kv_tokens, two.info.kv_tokens) == (1000, 9)


def run_python(*arguments: str, code: str | None = None) -> "subprocess.CompletedProcess[str]":
    prelude = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    command = [sys.executable, *(arguments or ("-c", prelude + (code or "")))]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


USE = f"""
from ramet import EngineProcess
engine = EngineProcess("fake", builder="{BUILDERS}:counting")
print(engine.generate("x", max_tokens=3).text, "torch" in sys.modules)
"""


def test_a_script_without_a_main_guard_works_and_imports_no_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{USE}")
    done = run_python(str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("0 1 2  False\n", "", 0)


def test_it_works_in_an_interactive_session() -> None:
    done = run_python(code=USE)
    assert (done.stdout, done.stderr, done.returncode) == ("0 1 2  False\n", "", 0)


def test_the_process_ends_with_a_parent_that_is_killed(private_temp: Path) -> None:
    code = (
        f"import sys, os, signal; sys.path.insert(0, {str(ROOT)!r})\n"
        "from ramet import EngineProcess\n"
        f"engine = EngineProcess('fake', builder='{BUILDERS}:counting')\n"
        f"stream = engine.stream('x', max_tokens={FOREVER})\n"
        "next(stream)\n"
        "print(engine.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: is_gone(int(done.stdout)))
    wait_until(lambda: not list(private_temp.iterdir()))


def test_interrupting_a_batch_aborts_it() -> None:
    code = (
        "import os, signal, threading, time\n"
        "from ramet import EngineProcess\n"
        f"engine = EngineProcess('fake', builder='{BUILDERS}:slow')\n"
        "def interrupt():\n"
        "    while engine.stats().running_requests < 2: time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n"
        f"    engine.generate(['a', 'b'], max_tokens={FOREVER})\n"
        "except KeyboardInterrupt:\n"
        "    while engine.stats().running_requests: time.sleep(0.01)\n"
        "    print('interrupted', engine.generate('x', max_tokens=1).finish_reason.value)\n"
    )
    done = run_python(code=code)
    assert (done.stdout, done.stderr) == ("interrupted length\n", "")


def test_a_finish_reason_survives_the_journey(engine: EngineProcess) -> None:
    output = engine.generate("x", max_tokens=1)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.stats.num_output_tokens == 1


FORK = f"""
import os, signal, warnings
from ramet import EngineProcess
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import EngineLoop
from tests.runtime.engine.fake_core import INFO, CountingCore

warnings.simplefilter("ignore", DeprecationWarning)
remote = EngineProcess("fake", builder="{BUILDERS}:counting")
local = EngineFace(EngineLoop(CountingCore(), INFO), remote.tokenizer)
streams = [engine.stream("x", max_tokens=1000000) for engine in (remote, local)]
if (child := os.fork()) == 0:
    signal.alarm(20)
    for stream in streams:
        try:
            for _ in stream:
                pass
        except Exception as error:
            print(type(error).__name__, "is a fork" in str(error), flush=True)
    for engine in (remote, local):
        for name, arguments in (("generate", ["x"]), ("stream", ["x"]), ("stats", []), ("flush_cache", [])):
            try:
                getattr(engine, name)(*arguments)
            except Exception as error:
                print(type(error).__name__, "is a fork" in str(error), flush=True)
        engine.abort("x")
        engine.close()
    os._exit(0)
print(os.waitpid(child, 0)[1])
for stream in streams:
    stream.close()
print(remote.generate("x", max_tokens=3).text, local.generate("x", max_tokens=3).text)
"""


def test_a_fork_is_refused_at_once_and_harms_nothing() -> None:
    done = run_python(code=FORK)
    assert done.stdout == "EngineDeadError True\n" * 10 + "0\n0 1 2  0 1 2 \n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_cache_has_an_outline(engine: EngineProcess) -> None:
    assert engine.cache_outline("abc").num_nodes == 3
    assert engine.release_session("mine") == 4


def test_scores_are_one_request_there_too() -> None:
    with EngineProcess(
        "fake", builder="tests.runtime.engine.speaking:build_speaking", start_timeout=60
    ) as engine:
        scores = engine.score("Is it? ", ["yes", "yesterday", "no"])
        assert [one.token_logprobs for one in scores] == [
            [pytest.approx(-0.5 - byte / 1000) for byte in text] for text in (b"yes", b"yesterday", b"no")
        ]
        assert engine.stats().finished_requests == 1
