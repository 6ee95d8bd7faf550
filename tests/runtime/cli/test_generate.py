"""``ramet generate``: where the prompt comes from, what goes to stdout and what to stderr."""

import io
import sys
from typing import Any

import pytest

from ramet.runtime.protocol import SamplingParams


def test_the_answer_goes_to_stdout_and_its_cost_to_stderr(ramet: Any, fake_engine: Any) -> None:
    done = ramet("generate", "hello there")
    assert (done.status, done.out) == (0, "You said: hello there.\n")
    assert "5 prompt tokens (0 cached, 5 computed), 3 generated, 2.0 tokens/s" in done.err
    assert fake_engine.prompts == [[{"role": "user", "content": "hello there"}]]
    assert fake_engine.streams[0].closed
    assert fake_engine.closed


def test_options_reach_the_engine(ramet: Any, fake_engine: Any) -> None:
    line = "generate hi --system brief -t 0.5 --top-p 0.9 --top-k 7 --seed 3 --stop a --stop b --max-tokens 9"
    engine = "--model m --device cpu --dtype float32 --quantization none"
    pool = "--kv-cache-dtype float16 --kv-tokens 99 --threads 2"
    done = ramet(*line.split(), *engine.split(), *pool.split())
    assert done.status == 0
    assert fake_engine.prompts == [[{"role": "system", "content": "brief"}, {"role": "user", "content": "hi"}]]
    assert fake_engine.params == [
        SamplingParams(temperature=0.5, top_p=0.9, top_k=7, seed=3, stop=("a", "b"), max_tokens=9)
    ]
    assert fake_engine.settings == {
        "model": "m",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
        "kv_cache_dtype": "float16",
        "kv_tokens": 99,
        "threads": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], [{"role": "user", "content": "two\nlines"}]), (["--raw"], "two\nlines\n")],
)
def test_a_dash_reads_stdin(
    ramet: Any, fake_engine: Any, monkeypatch: Any, arguments: Any, expected: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    assert ramet("generate", "-", *arguments).status == 0
    assert fake_engine.prompts == [expected]


def test_stdin_that_is_no_text_is_refused(ramet: Any, fake_engine: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    done = ramet("generate", "-")
    assert done.status == 1
    assert "stdin is not text in UTF-8" in done.err
    assert fake_engine.prompts == []


def test_raw_takes_no_system_message(ramet: Any, fake_engine: Any) -> None:
    done = ramet("generate", "x", "--raw", "--system", "brief")
    assert done.status == 2
    assert "--raw" in done.err


def test_an_unknown_model_is_one_line(ramet: Any) -> None:
    done = ramet("generate", "x", "--model", "./nowhere.gguf")
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert "nowhere.gguf" in done.err
    assert done.err.count("\n") == 1


def test_the_real_model_answers(ramet: Any, real_engine: Any, monkeypatch: Any) -> None:
    from ramet.runtime.cli import options

    monkeypatch.setattr(options, "open_engine", lambda **_settings: real_engine)
    monkeypatch.setattr(real_engine, "close", lambda: None)
    first = ramet("generate", "What is the capital of France?", "--max-tokens", "12")
    second = ramet("generate", "What is the capital of France?", "--max-tokens", "12")
    assert first.status == second.status == 0
    assert first.out == second.out
    assert first.out.strip()
    assert "(0 cached" in first.err
    assert "(0 cached" not in second.err
    raw = ramet("generate", "--raw", "The capital of France is", "--max-tokens", "3")
    assert "Paris" in raw.out
    assert "(cut: --max-tokens)" in raw.err


class FullDisk(io.StringIO):
    encoding = "ascii"

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("stream", "value", "said"),
    [
        ("stdin", None, "stdin is closed"),
        ("stdout", None, "stdout is closed"),
        ("stdout", FullDisk(), "stdout cannot be written: No space left on device"),
    ],
)
def test_a_stream_that_cannot_be_used_is_one_line(
    ramet: Any, fake_engine: Any, monkeypatch: Any, stream: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(sys, stream, value)
    done = ramet("generate", "-" if stream == "stdin" else "hello")
    assert done.status == 1
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


def test_characters_that_stdout_lacks_become_question_marks(
    ramet: Any, fake_engine: Any, monkeypatch: Any
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert ramet("generate", "na\u00efve \U0001f98a").status == 0
    out.seek(0)
    assert out.read() == "You said: na?ve ?.\n"


def test_an_argument_that_is_no_text_is_refused(ramet: Any, fake_engine: Any) -> None:
    done = ramet("generate", "a\udcffb")
    assert (done.status, done.out) == (1, "")
    assert "prompt is not text in UTF-8: byte 0xff at character 1" in done.err
    assert fake_engine.settings == {}


def test_a_base_model_is_refused_with_the_way_out(ramet: Any, fake_engine: Any) -> None:
    fake_engine.chat_template = None
    done = ramet("generate", "hi")
    assert done.status == 1
    assert "complete text with --raw" in done.err
    assert ramet("generate", "hi", "--raw").status == 0
    chat = ramet("chat")
    assert chat.status == 1
    assert "complete text with ramet generate --raw" in chat.err
