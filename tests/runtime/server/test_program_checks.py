"""Programs whose later calls cannot run: refused before the first one does."""

from collections.abc import Iterator
from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError, SamplingParams, programs
from ramet.runtime.server import ServerConfig, create_app
from ramet.runtime.server.program_checks import MAX_AHEAD, MAX_KNOWN, check_calls
from ramet.runtime.tokenizer import FastTokenizer
from tests.lang.backends.constrained_engine import open_face
from tests.runtime.server.speaking_server import Served, error_of, wait_until_idle

WHERE = "program.branches[0].operations[{}].params"


@pytest.fixture(scope="module")
def constrained() -> Iterator[Served]:
    with open_face() as engine:
        assert isinstance(engine.tokenizer, FastTokenizer)
        yield Served(create_app(engine, engine.tokenizer.spec, ServerConfig()), engine, {})
        wait_until_idle(engine)


def body(**params: Any) -> dict[str, Any]:
    operations = [
        {"do": "text", "text": "a"},
        {"do": "gen", "variable": "first", "params": {"max_tokens": 2}},
        {"do": "gen", "variable": "later", "params": {"max_tokens": 2, **params}},
    ]
    program = {"version": 1, "branches": [{"name": "root", "operations": operations}]}
    return {"program": program, "stream": False}


def wire(*params: SamplingParams) -> programs.WireProgram:
    gens: list[programs.Operation] = [
        programs.Gen(variable=f"v{index}", params=one) for index, one in enumerate(params)
    ]
    branch = programs.ProgramBranch(name="root", operations=[programs.SayText(text="a"), *gens])
    return programs.WireProgram(version=1, branches=[branch])


@pytest.mark.parametrize(
    ("params", "field", "said"),
    [
        ({"grammar": {"type": "regex", "pattern": "(?<=a)b"}}, "grammar", "look-around"),
        ({"grammar": {"type": "regex", "pattern": "("}}, "grammar", "("),
        ({"grammar": {"type": "json_schema", "schema": '{"type": "strin"}'}}, "grammar", "strin"),
        ({"grammar": {"type": "json_schema", "schema": "{"}}, "grammar", "JSON"),
        ({"grammar": {"type": "ebnf", "grammar": 'root ::= "a'}}, "grammar", "GBNF"),
        ({"max_tokens": 1_000_000}, "max_tokens", "1000000"),
        ({"logit_bias": {"999999": 1.0}}, "logit_bias", "999999"),
        ({"stop_token_ids": [999999]}, "stop_token_ids", "999999"),
    ],
)
def test_what_a_later_call_cannot_have_is_refused_first(
    constrained: Served, params: dict[str, Any], field: str, said: str
) -> None:
    for options in ({"stream": False}, {"stream": True}, {"stream": False, "background": True}):
        before = constrained.engine.stats().output_tokens
        error = error_of(constrained.post("/v1/programs", {**body(**params), **options}), 400)
        assert error["param"] == f"{WHERE.format(2)}.{field}"
        assert said.lower() in error["message"].lower()
        assert constrained.engine.stats().output_tokens == before
    assert constrained.get("/v1/programs").json()["data"] == []


def test_good_constraints_are_tried_once(constrained: Served) -> None:
    wanted = body(grammar={"type": "regex", "pattern": "[ab]{2}c*"})
    requests = []
    for _ in range(3):
        before = constrained.engine.stats().finished_requests
        answer = constrained.post("/v1/programs", wanted).json()
        assert answer["status"] == "completed"
        requests.append(constrained.engine.stats().finished_requests - before)
    assert requests == [3, 2, 2]


def test_many_constraints_are_tried_in_part(constrained: Served) -> None:
    gens = [
        {
            "do": "gen",
            "variable": f"v{index}",
            "params": {
                "max_tokens": 1,
                "grammar": {"type": "regex", "pattern": f"x{index}" if index < MAX_AHEAD else "("},
            },
        }
        for index in range(MAX_AHEAD + 1)
    ]
    said = {"do": "text", "text": "a"}
    program = {"version": 1, "branches": [{"name": "root", "operations": [said, *gens]}]}
    answer = constrained.post("/v1/programs", {"program": program, "stream": False}).json()
    assert answer["status"] == "failed"
    assert set(answer["failures"]) == {f"v{MAX_AHEAD}"}
    assert MAX_KNOWN > MAX_AHEAD


def test_who_has_the_language_is_told_of_the_call(constrained: Served) -> None:
    wanted = {**body(grammar={"type": "regex", "pattern": "("}), "stream": True, "events": "calls"}
    response = constrained.post("/v1/programs", wanted)
    assert response.status_code == 200
    assert "call.failed" in response.text


def test_calls_are_checked_against_the_model(constrained: Served) -> None:
    info = constrained.engine.info
    check_calls(wire(SamplingParams(), SamplingParams(max_tokens=info.context_length - 1)), info)
    check_calls(wire(SamplingParams(max_tokens=None)), info)
    with pytest.raises(PromptTooLongError, match=r"operations\[2\]"):
        check_calls(wire(SamplingParams(), SamplingParams(max_tokens=info.context_length)), info)
    with pytest.raises(InvalidRequestError) as caught:
        check_calls(wire(SamplingParams(logit_bias={info.vocab_size: 1.0})), info)
    assert caught.value.field == f"{WHERE.format(1)}.logit_bias"
