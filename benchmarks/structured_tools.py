"""Tool calls: requests of the Berkeley Function-Calling Leaderboard, made as the server makes them; every call
is held to its tool's schema, whatever a small model makes of the question.

BFCL writes its parameters' types in Python's words; they are taken for those of JSON Schema, as its own
evaluation does.
"""

import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.json_answers import problem
from benchmarks.structured_outputs import KV_TOKENS, NUM_RUNNING
from benchmarks.workloads import shared_file
from ramet import Engine, SamplingParams
from ramet.runtime.models.loading import load_model
from ramet.runtime.protocol import FinishReason
from ramet.runtime.server.chat_fields import ChatFields
from ramet.runtime.server.chat_prompt import ChatModel, ChatPrompt
from ramet.runtime.server.tools.call_parser import CallArguments, CallBegin, CallEnd
from ramet.runtime.server.tools.definitions import tool_choice
from ramet.runtime.server.tools.formats import tool_format

FILES = ("simple_python", "live_simple", "multiple", "parallel")
CHOICES = ("required", "auto")
_TYPES = {
    **dict.fromkeys(("dict", "hashmap"), "object"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("int", "long"), "integer"),
    **dict.fromkeys(("list", "tuple", "arraylist"), "array"),
    **dict.fromkeys(("str", "char"), "string"),
    "bool": "boolean",
}
_ANY = "any"


class ToolCase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request. ``problems``: of whole calls, and of an answer that had to be calls; why a
    request was refused is no problem of a call."""

    name: str
    end: str
    num_calls: int = 0
    num_tokens: int = 0
    num_forwards: int = 0
    problems: list[str] = []


def read_tool_cases(file: str, limit: int | None) -> list[ToolCase]:
    """Raises SharedDataMissingError without the data."""
    path = shared_file(Path(f"data/bfcl_v4_{file}.jsonl.gz"))
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines][:limit]
    return [
        ToolCase(
            name=entry["id"],
            messages=entry["question"][0],
            tools=[
                {"type": "function", "function": {**function, "parameters": json_types(function["parameters"])}}
                for function in entry["function"]
            ],
        )
        for entry in entries
    ]


def json_types(schema: Any) -> Any:
    """A parameter's schema with JSON Schema's names of types."""
    if isinstance(schema, list):
        return [json_types(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    known = schema.get("type")
    result = {key: value if key == "default" else json_types(value) for key, value in schema.items()}
    if known == _ANY:
        del result["type"]
    elif isinstance(known, str):
        result["type"] = _TYPES.get(known.lower(), known)
    return result


class ToolRunner:
    """One engine, which it owns, and what the server knows of its model."""

    def __init__(self, model: str, threads: int | None) -> None:
        spec = load_model(model, quantization="int8", device="cpu").tokenizer_spec
        self._engine = Engine(
            model, threads=threads, progress=False, kv_tokens=KV_TOKENS, max_running_requests=NUM_RUNNING
        )
        self._talk = ChatModel.of(
            self._engine.tokenizer,
            spec,
            frozenset(self._engine.info.grammars),
            tool_format("auto", spec),
            "none",
        )

    def run(self, cases: Sequence[ToolCase], choice: str, max_tokens: int) -> tuple[list[Calls], float]:
        """The answers, sampled at temperature 1, and the seconds that they took."""
        prompts = [
            self._talk.prompt(
                ChatFields(messages=case.messages), tool_choice(case.tools, choice, parallel=None), None
            )
            for case in cases
        ]
        started = time.perf_counter()
        outputs = self._engine.generate(
            [prompt.token_ids for prompt in prompts],
            [
                SamplingParams(
                    temperature=1.0,
                    seed=index,
                    max_tokens=max_tokens,
                    grammar=prompt.grammar,
                    skip_special_tokens=not prompt.keeps_special_text,
                )
                for index, prompt in enumerate(prompts)
            ],
            progress=False,
            return_errors=True,
        )
        wall = time.perf_counter() - started
        answers = zip(cases, prompts, outputs, strict=True)
        return [_judged(case, prompt, output, choice == "required") for case, prompt, output in answers], wall

    def close(self) -> None:
        self._engine.close()


def tool_metrics(found: Sequence[Calls], wall: float) -> dict[str, float | None]:
    ends = [one.end for one in found]
    calls = sum(one.num_calls for one in found)
    tokens = sum(one.num_tokens for one in found)
    wrong = sum(len(one.problems) for one in found if one.end != "refused")
    return {
        "requests": float(len(found)),
        **{end: float(ends.count(end)) for end in ("finished", "length", "refused", "failed")},
        "calls": float(calls),
        "valid_share": 1 - wrong / max(calls, wrong) if calls or wrong else None,
        "tokens": float(tokens),
        "forwards_per_token": sum(one.num_forwards for one in found) / tokens if tokens else None,
        "tokens_per_s": tokens / wall,
        "wall_s": wall,
    }


def _judged(case: ToolCase, prompt: ChatPrompt, output: Any, must_call: bool) -> Calls:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case.tools}
    calls = list(_calls(prompt, output.text))
    problems = [found for name, text in calls if (found := _call_problem(schemas, name, text)) is not None]
    match output.finish_reason:
        case FinishReason.ERROR:
            end = "failed" if output.token_ids else "refused"
            problems.append(output.error or "it failed")
        case FinishReason.LENGTH:
            end = "length"
        case _:
            end = "finished"
            if must_call and not calls:
                problems.append(f"no call: {output.text[:200]}")
    return Calls(
        name=case.name,
        end=end,
        num_calls=len(calls),
        num_tokens=len(output.token_ids),
        num_forwards=output.stats.num_sampling_steps,
        problems=problems,
    )


def _call_problem(schemas: Mapping[str, Any], name: str, text: str) -> str | None:
    if name not in schemas:
        return f"no tool is named {name}"
    found = problem(schemas[name], text)
    return None if found is None else f"{name}: {found}"


def _calls(prompt: ChatPrompt, text: str) -> Iterator[tuple[str, str]]:
    """Name and arguments of each whole call, as the server reads them."""
    parser = prompt.call_parser()
    assert parser is not None
    name, arguments = "", ""
    for event in [*parser.feed(text), *parser.finish()]:
        match event:
            case CallBegin(called):
                name, arguments = called, ""
            case CallArguments(more):
                arguments += more
            case CallEnd():
                yield name, arguments
