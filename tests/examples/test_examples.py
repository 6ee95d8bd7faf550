"""Every example runs with the real model, and what it is there to show does happen."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet.runtime.cli import main as ramet_main
from ramet.runtime.cli import options

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TESTED = {
    "agent_memory",
    "async_agents",
    "batch_extraction",
    "chat_memory",
    "chat_turns",
    "engine_process",
    "expert_answers",
    "few_shot_qa",
    "json_extraction",
    "judge",
    "math_word_problems",
    "react",
    "research_note",
    "score_options",
    "skeleton_of_thought",
    "streaming",
    "tool_calls",
    "tree_of_thought",
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


def test_research_note(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answers = load("research_note").main(engine)
    assert len(answers) == 4
    shared = answers[-1].stats.num_cached_tokens
    assert shared > 150, "the document comes from the cache"
    assert sum(answer.stats.num_cached_tokens > 150 for answer in answers) == 3, "it is computed once"
    printed = capsys.readouterr().out
    assert "What are coral reefs made of?" in printed
    assert "Title" in printed


def test_research_note_through_the_command(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The library opens at nine. It is closed on Sundays. Books may be kept for four weeks.")
    monkeypatch.setattr(options, "open_engine", lambda **_settings: engine)
    monkeypatch.setattr(engine, "close", lambda: None)
    monkeypatch.setattr(sys, "argv", ["ramet", "run", str(EXAMPLES / "research_note.py"), str(text)])
    with pytest.raises(SystemExit) as exited:
        ramet_main()
    captured = capsys.readouterr()
    assert not exited.value.code, captured.err
    assert "Title" in captured.out
    assert "calls in" in captured.err


def test_streaming(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = engine.stats()
    load("streaming").main(engine)
    printed = capsys.readouterr().out
    assert "tokens, " in printed
    assert "Left after" in printed
    # The stream that was left was aborted, and its prompt had come from the cache.
    after = engine.stats()
    assert after.aborted_requests == before.aborted_requests + 1
    assert after.cached_tokens > before.cached_tokens


def test_batch_extraction(engine: Any) -> None:
    module = load("batch_extraction")
    outputs = module.main(engine)
    assert len(outputs) == len(module.SENTENCES)
    assert {output.text for output in outputs} == {" English", " German", " French", " Spanish"}
    num_prompt = sum(output.stats.num_prompt_tokens for output in outputs)
    num_cached = sum(output.stats.num_cached_tokens for output in outputs)
    assert num_cached > num_prompt / 2
    assert sum(output.stats.num_cached_tokens == 0 for output in outputs) == 1


def test_chat_memory(engine: Any) -> None:
    answers = load("chat_memory").main(engine)
    cached = [answer.stats.num_cached_tokens for answer in answers]
    assert cached[0] == 0
    assert cached == sorted(set(cached)), "each turn finds more of the history in the cache"
    last = answers[-1].stats
    # All but the new turn, the template around it and what does not fill a page.
    assert last.num_prompt_tokens - last.num_cached_tokens < 48


def test_score_options(engine: Any) -> None:
    module = load("score_options")
    chosen = module.main(engine)
    for (question, answers), text in zip(module.QUESTIONS, chosen, strict=True):
        scores = {score.text: score.score for score in engine.score(question, answers, normalize=True)}
        assert set(scores) == set(answers)
        assert scores[text] == max(scores.values())
    # What is nearly as probable to a model of this size may be the more probable one on another CPU.
    assert (chosen[0], chosen[2]) == (" Paris", " cold")


def test_async_agents(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = engine.stats()
    results = asyncio.run(load("async_agents").main(engine))
    assert len(results) >= 2
    assert "poet" not in results
    assert all(results.values())
    printed = capsys.readouterr().out
    assert "poet" in printed.split("cancelled:")[1]
    after = engine.stats()
    assert after.aborted_requests > before.aborted_requests
    assert after.cached_tokens > before.cached_tokens


def test_engine_process(engine: Any) -> None:
    """As a script of its own, which is what it is about: torch is not loaded there."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "engine_process.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "torch here: False" in done.stdout
    assert "EngineDeadError: " in done.stdout
