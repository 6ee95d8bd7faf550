"""The workloads as a client of any OpenAI-compatible server runs them, and the figures of one repetition.

W1, W2, W3 and W6 are text completions, so that prompts have the stated numbers of tokens; W4 and W5 are chats.
End-of-text is ignored but in W5, whose answers end by themselves or after 128 tokens.
"""

import asyncio
import gzip
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.json_answers import problem
from benchmarks.load_client import Messages, ServedCall, ServerClient
from benchmarks.record import quantile
from benchmarks.workloads import (
    SHAPES,
    WORKLOADS_FILE,
    Workload,
    generate_workload,
    read_workload,
    shared_file,
    shorten,
)

OBJECTS, UNCONSTRAINED = "W5", "W5u"
NAMES = ("W1", "W2", "W3", "W4", OBJECTS, UNCONSTRAINED, "W6")
TITLES = {
    **{name: shape.title for name, shape in SHAPES.items()},
    OBJECTS: "32 JSON objects by a schema, at most 128 tokens, 8 at a time",
    UNCONSTRAINED: "the same, unconstrained",
}
NUM_OBJECTS, OBJECT_TOKENS, OBJECTS_AT_ONCE = 32, 128, 8

Call = Callable[[], Awaitable[ServedCall]]


OBJECT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 32},
        "age": {"type": "integer"},
        "role": {"type": "string", "enum": ["admin", "editor", "viewer", "guest"]},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 32},
                "city": {"type": "string", "maxLength": 24},
                "number": {"type": "integer"},
            },
            "required": ["street", "city", "number"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "role", "address", "tags"],
    "additionalProperties": False,
}
_WHO = ("a gardener", "a nurse", "a printer", "a sailor", "a teacher", "a weaver", "a baker", "a clerk")
_WHERE = ("in Bergen", "in Lagos", "in Porto", "in Hanoi", "in Turin", "in Leeds", "in Cusco", "in Tartu")


@dataclass(frozen=True, slots=True)
class Load:
    """What one repetition of a workload sends. Either ``workload`` or ``dialogues`` has something."""

    name: str
    workload: Workload | None = None
    dialogues: tuple[Messages, ...] = ()
    schema: dict[str, Any] | None = None
    """What the answers to the dialogues are judged by."""
    max_tokens: int = OBJECT_TOKENS
    own_fields: Mapping[str, Any] = field(default_factory=dict)
    """What the server at hand takes beside the API's fields, in requests with a schema."""


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One repetition as its client saw it: rounds of calls, of which the next began when all had ended."""

    rounds: list[list[ServedCall]]
    wall: float


def make_load(name: str, variant: int, *, seed: int | None, quick: bool) -> Load:
    """``seed``: None for the recorded prompts. ``quick``: a tenth of the work.

    Raises SharedDataMissingError where there are no recorded ones, KeyError for an unknown name.
    """
    if name in (OBJECTS, UNCONSTRAINED):
        dialogues, schema = _recorded_objects(variant) if seed is None else _objects(variant, seed)
        if quick:
            return Load(name, dialogues=tuple(dialogues[:4]), schema=schema)
        return Load(name, dialogues=tuple(dialogues), schema=schema)
    workload = read_workload(name, variant) if seed is None else generate_workload(name, variant, seed)
    return Load(name, shorten(workload) if quick else workload)


async def warm_up(client: ServerClient, seed: int | None, quick: bool) -> list[ServedCall]:
    """Some calls of variant 0 of every kind but the constrained one: the first ones allocate and compile."""
    first, batch, long = (make_load(name, 0, seed=seed, quick=quick).workload for name in ("W1", "W2", "W6"))
    assert first is not None
    assert batch is not None
    assert long is not None
    calls = [await client.complete(first.prompts[0], 8)]
    run = await run_load(Load("W2", replace(batch, prompts=batch.prompts[:32], max_tokens=4)), client)
    calls += run.rounds[0]
    calls.append(await client.complete(long.prompts[0], 2))
    objects = make_load(UNCONSTRAINED, 0, seed=seed, quick=quick)
    run = await run_load(replace(objects, dialogues=objects.dialogues[:8], max_tokens=8), client)
    return calls + run.rounds[0]


async def run_load(load: Load, client: ServerClient) -> ServedRun:
    """Errors of calls are in the calls."""
    started = time.perf_counter()
    rounds = await _rounds(load, client)
    return ServedRun(rounds, time.perf_counter() - started)


def run_metrics(load: Load, run: ServedRun) -> dict[str, float | None]:
    """Throughput in tokens/s, times in milliseconds, shares of 1. Failed calls count only as ``failed``.

    TPOT runs from the first to the last token of an answer; ``valid_share`` is of all answers asked for.
    ``wrong``: how many are invalid though it was not the limit of tokens that ended them.
    """
    calls = [call for one in run.rounds for call in one]
    good = [call for call in calls if call.error is None]
    ttfts = [_ttft_ms(call) for call in good]
    later = [_ttft_ms(call) for one in run.rounds[1:] for call in one if call.error is None]
    tpots = [1e3 * value for call in good if (value := call.seconds_per_token) is not None]
    num_prompt = sum(call.num_prompt_tokens for call in good)
    num_output = sum(call.num_output_tokens for call in good)
    valid = wrong = None
    if load.schema is not None:
        invalid = [call for call in good if problem(load.schema, call.text) is not None]
        valid = (len(good) - len(invalid)) / len(calls)
        wrong = float(sum(call.finish_reason != "length" for call in invalid))
    return {
        "output_tokens_per_s": num_output / run.wall,
        "ttft_mean_ms": statistics.mean(ttfts) if ttfts else None,
        "ttft_median_ms": statistics.median(ttfts) if ttfts else None,
        "ttft_p99_ms": quantile(ttfts, 0.99) if ttfts else None,
        "ttft_later_turns_ms": statistics.mean(later) if later else None,
        "tpot_median_ms": statistics.median(tpots) if tpots else None,
        "valid_share": valid,
        "wrong": wrong,
        "cached_share": sum(call.num_cached_tokens for call in good) / num_prompt if num_prompt else None,
        "prompt_tokens": float(num_prompt),
        "output_tokens": float(num_output),
        "requests": float(len(calls)),
        "failed": float(len(calls) - len(good)),
        "wall_s": run.wall,
    }


def _ttft_ms(call: ServedCall) -> float:
    return 1e3 * (call.first_token - call.sent)


async def _rounds(load: Load, client: ServerClient) -> list[list[ServedCall]]:
    workload = load.workload
    if workload is None:
        fields: dict[str, Any] = {"ignore_eos": False}
        if load.name == OBJECTS:
            named = {"name": "person", "schema": load.schema, "strict": True}
            fields |= {"response_format": {"type": "json_schema", "json_schema": named}, **load.own_fields}
        chats = [_chat(client, messages, load.max_tokens, fields) for messages in load.dialogues]
        return [await _pool(chats, OBJECTS_AT_ONCE)]
    if workload.conversations:
        return await _converse(workload, client)
    completions = [_completion(client, prompt, workload.max_tokens) for prompt in workload.prompts]
    return [await _pool(completions, workload.concurrency)]


async def _converse(workload: Workload, client: ServerClient) -> list[list[ServedCall]]:
    """A turn of all conversations at once; then each goes on with the answer that it got."""
    histories: list[list[dict[str, str]]] = [[] for _ in workload.conversations]
    rounds: list[list[ServedCall]] = []
    for turn in range(len(workload.conversations[0])):
        for history, turns in zip(histories, workload.conversations, strict=True):
            history.append({"role": "user", "content": turns[turn]})
        asked = [client.chat(history, workload.max_tokens) for history in histories]
        rounds.append(list(await asyncio.gather(*asked)))
        for history, call in zip(histories, rounds[-1], strict=True):
            history.append({"role": "assistant", "content": call.text})
    return rounds


def _chat(client: ServerClient, messages: Messages, max_tokens: int, fields: dict[str, Any]) -> Call:
    return lambda: client.chat(messages, max_tokens, **fields)


def _completion(client: ServerClient, prompt: str, max_tokens: int) -> Call:
    return lambda: client.complete(prompt, max_tokens)


async def _pool(calls: Sequence[Call], concurrency: int) -> list[ServedCall]:
    """In their order; ``concurrency`` at a time, the next begins when one has ended."""
    waiting = iter(enumerate(calls))
    done: dict[int, ServedCall] = {}

    async def work() -> None:
        for index, call in waiting:
            done[index] = await call()

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(calls)))))
    return [done[index] for index in range(len(calls))]


def _recorded_objects(variant: int) -> tuple[list[Messages], dict[str, Any]]:
    with gzip.open(shared_file(WORKLOADS_FILE), "rt", encoding="utf-8") as file:
        recorded = json.load(file)
    return recorded["variants"][variant][OBJECTS], recorded["schema"]


def _objects(variant: int, seed: int) -> tuple[list[Messages], dict[str, Any]]:
    """Dialogues of the same shape. Deterministic in (variant, seed)."""
    source = random.Random(f"{OBJECTS} {variant} {seed}")
    people = source.sample([f"{who} {where}" for who in _WHO for where in _WHERE], NUM_OBJECTS)
    system = (
        "You make up test data. Answer with one JSON object and nothing else. Its keys are name, age, "
        "role (admin, editor, viewer or guest), address (street, city, number) and tags."
    )
    # The number keeps variants apart that draw the same person.
    return [
        [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Person {variant}: {person}, as JSON."},
        ]
        for person in people
    ], OBJECT_SCHEMA
