"""``ramet check``: what is enforced, by whom, and what is refused, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}


@pytest.fixture
def schema_file(tmp_path: Path) -> Any:
    def write(schema: object) -> str:
        path = tmp_path / "schema.json"
        path.write_text(json.dumps(schema))
        return str(path)

    return write


def test_an_enforced_schema_names_its_engine_and_its_times(ramet: Any, schema_file: Any) -> None:
    done = ramet("check", schema_file(SCHEMA))
    assert done.status == 0
    assert "enforced whole by llguidance" in done.out
    assert "compiled in" in done.out


def test_a_refused_schema_says_where_why_and_what_to_do(ramet: Any, schema_file: Any) -> None:
    schema = {"properties": {"tags": {"type": "array", "uniqueItems": True}}}
    done = ramet("check", schema_file(schema), "--json")
    assert done.status == 1
    report = json.loads(done.out)
    assert not report["enforced"]
    assert report["engine"] is None
    assert report["compile_ms"] is None
    assert [item["at"] for item in report["refused"]] == ["#/properties/tags/uniqueItems"]
    assert all(item["why"] and item["remedy"] for item in report["refused"])
    people = ramet("check", schema_file(schema))
    assert people.status == 1
    assert "#/properties/tags/uniqueItems" in people.out
    assert "remedy:" in people.out


def test_a_backend_is_held_to_the_schema(ramet: Any, schema_file: Any) -> None:
    done = ramet("check", schema_file(SCHEMA), "--backend", "outlines", "--json")
    assert done.status == 1
    assert any("minimum" in item["at"] for item in json.loads(done.out)["refused"])
    assert ramet("check", schema_file(SCHEMA), "--backend", "nobody").status == 1


def test_annotations_are_noted(ramet: Any, schema_file: Any) -> None:
    done = ramet("check", schema_file({"type": "string", "format": "colour"}))
    assert done.status == 0
    assert "'colour' is no format of JSON Schema" in done.out


def test_what_is_no_schema_is_an_error(ramet: Any, schema_file: Any, tmp_path: Path) -> None:
    assert "must be one or several of" in ramet("check", schema_file({"type": "strnig"})).err
    assert "cannot be read" in ramet("check", str(tmp_path / "absent.json")).err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "UTF-8" in ramet("check", str(tmp_path / "binary")).err


def test_types_of_a_module(ramet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_types.py").write_text(
        "from dataclasses import dataclass\nfrom pydantic import BaseModel\n"
        "class Person(BaseModel):\n    name: str\n    age: int\n"
        "@dataclass\nclass Point:\n    x: float\n    y: float\n"
        "NUMBER = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    report = json.loads(ramet("check", "checked_types:Person", "--json").out)
    assert list(report["rewritten"]["properties"]) == ["name", "age"]
    assert ramet("check", "checked_types:Point").status == 0
    assert "must be a pydantic model" in ramet("check", "checked_types:NUMBER").err
    assert "cannot be imported" in ramet("check", "no_such_module:Person").err
