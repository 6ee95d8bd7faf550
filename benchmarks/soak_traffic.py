"""What the clients of a soak do: they ask what has one right answer, leave, abort, and send nonsense."""

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.load_client import stream_events
from benchmarks.workloads import random_words

MOST_FAULTS = 50
RETRY_SECONDS = 0.2
RETRIES = 300
"""Of a call that is told to come again later (429, 503): for a minute."""
LATER = (429, 503)
LONG = 160
"""Tokens of answers that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Known:
    """A request and its one right answer; ``stream``: asked both ways."""

    route: str
    body: dict[str, Any]
    answer: object = None


@dataclass(slots=True)
class Ledger:
    """What was done, and what was not as it has to be."""

    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_faults: int = 0

    def fault(self, text: str) -> None:
        self.num_faults += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


class Traffic:
    """Single acts of clients, each of which ends by itself and enters what it saw into the ledger."""

    def __init__(self, http: httpx.AsyncClient, model: str, ledger: Ledger, seed: int) -> None:
        self._http = http
        self._model = model
        self._ledger = ledger
        self._random = random.Random(f"soak {seed}")
        self._known: list[Known] = []
        self._hostile = hostile_bodies(model)

    async def learn(self) -> None:
        """Ask for the right answers, while nothing else happens. Raises RuntimeError where there is none."""
        self._known = []
        for known in known_requests(self._model):
            response = await self._http.post(known.route, json=known.body)
            if response.status_code != 200:
                raise RuntimeError(f"{known.route} answers {response.status_code}: {response.text[:300]}")
            self._known.append(Known(known.route, known.body, answer_of(known.route, response.json())))

    async def fill(self, num_tokens: int) -> None:
        """Prompts that use every page of the pool once, so that memory for them is there from then on."""
        for _ in range(num_tokens // 256 + 1):
            body = {"prompt": random_words(self._random, 256), "max_tokens": 1, "model": self._model}
            await answered(self._http, "/v1/completions", body)

    async def ask(self) -> None:
        """A request whose answer is known; whatever happens meanwhile, that is the answer."""
        known = self._random.choice(self._known)
        if known.route in STREAMED and self._random.random() < 0.5:
            await self._ask_streamed(known)
            return
        response = await answered(self._http, known.route, known.body)
        if response.status_code != 200:
            self._ledger.fault(f"{known.route} answered {response.status_code}: {response.text[:300]}")
        elif (found := answer_of(known.route, response.json())) != known.answer:
            self._ledger.fault(f"{known.route} said {found!r} instead of {known.answer!r}")
        self._ledger.done["right or wrong answers"] += 1

    async def leave(self) -> None:
        """A stream whose client goes after some chunks, or at once."""
        async with self._http.stream("POST", "/v1/completions", json=self._long_body()) as response:
            if response.status_code == 200:
                await self._read(response, self._random.randrange(12))
        self._ledger.done["streams left"] += 1

    async def abort(self) -> None:
        """A stream that is aborted by name; it has to end."""
        request_id = f"soak-{secrets.token_hex(8)}"
        body = {**self._long_body(), "request_id": request_id}
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                return
            countdown = self._random.randrange(1, 6)
            async for _ in stream_events(response):
                countdown -= 1
                if countdown == 0:
                    answer = await self._http.post("/abort", json={"request_id": request_id})
                    if answer.status_code != 200:
                        self._ledger.fault(f"/abort answered {answer.status_code}: {answer.text[:300]}")
        self._ledger.done["streams aborted"] += 1

    async def harm(self) -> None:
        """A body that no client means: refused with a status below 500, or answered."""
        route, body = self._random.choice(self._hostile)
        headers = {"content-type": "application/json"}
        response = await self._http.post(route, content=body, headers=headers)
        if response.status_code >= 500 and response.status_code not in LATER:
            self._ledger.fault(
                f"{route} answered {response.status_code} to {body[:80]!r}: {response.text[:200]}"
            )
        self._ledger.done["hostile bodies"] += 1

    async def break_off(self) -> None:
        """A connection that ends in the middle of a body."""
        url = self._http.base_url
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
            b"content-length: 1000\r\n\r\n" + b'{"prompt": "half'[: self._random.randrange(1, 17)]
        )
        await writer.drain()
        await asyncio.sleep(self._random.random() * 0.2)
        writer.close()
        self._ledger.done["bodies broken off"] += 1

    async def hold_session(self) -> None:
        """A session that is used once and then closed, or left to its end."""
        opened = await self._http.post("/v1/sessions", json={"ttl": 1.0})
        if opened.status_code != 200:
            if opened.status_code not in LATER:
                self._ledger.fault(f"/v1/sessions answered {opened.status_code}: {opened.text[:300]}")
            return
        session = opened.json()["id"]
        body = {**self._long_body(), "max_tokens": 8, "stream": False, "session": session}
        await self._http.post("/v1/completions", json=body)
        if self._random.random() < 0.5:
            await self._http.delete(f"/v1/sessions/{session}")
        self._ledger.done["sessions"] += 1

    async def leave_program(self) -> None:
        """A whole program whose client goes after some events, or at once."""
        body = {"program": long_program(random_words(self._random, 8))}
        async with self._http.stream("POST", "/v1/programs", json=body) as response:
            if response.status_code == 200:
                await self._read(response, self._random.randrange(12))
            elif response.status_code not in LATER:
                said = (await response.aread()).decode(errors="replace")
                self._ledger.fault(f"/v1/programs answered {response.status_code}: {said[:300]}")
        self._ledger.done["programs left"] += 1

    async def _ask_streamed(self, known: Known) -> None:
        body = {**known.body, "stream": True}
        for _ in range(RETRIES):
            async with self._http.stream("POST", known.route, json=body) as response:
                if response.status_code in LATER:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                parts = [event async for event in stream_events(response)]
            found = folded_answer(known.route, parts)
            if found != known.answer:
                last = parts[-2:] if parts else response.status_code
                self._ledger.fault(f"{known.route} streamed {found!r} instead of {known.answer!r}: {last}")
            self._ledger.done["right or wrong streams"] += 1
            return
        self._ledger.fault(f"{known.route} has no room for a minute")

    async def _read(self, response: httpx.Response, count: int) -> None:
        async for _ in stream_events(response):
            count -= 1
            if count < 0:
                return

    def _long_body(self) -> dict[str, Any]:
        prompt = random_words(self._random, self._random.randrange(4, 100))
        sampling = {"temperature": 1.0, "max_tokens": LONG, "ignore_eos": True}
        return {"model": self._model, "prompt": prompt, "stream": True, **sampling}


async def answered(http: httpx.AsyncClient, route: str, body: dict[str, Any]) -> httpx.Response:
    """The answer to a call that comes again as long as it is told to."""
    response = await http.post(route, json=body)
    for _ in range(RETRIES):
        if response.status_code not in LATER:
            break
        await asyncio.sleep(RETRY_SECONDS)
        response = await http.post(route, json=body)
    return response


STREAMED = ("/v1/chat/completions", "/v1/completions", "/generate")


def known_requests(model: str) -> list[Known]:
    """Greedy, seeded and constrained ones on several routes; short, so that no kill finds one of them twice."""
    greedy = {"model": model, "max_tokens": 16, "temperature": 0.0}
    messages = [{"role": "user", "content": "Name three colours."}]
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}}
    constrained = {"type": "json_schema", "json_schema": {"name": "n", "schema": {**schema, "required": ["n"]}}}
    prompts = ["The capital of France is", "1 2 3 4 5", "Once upon a time there was a"]
    program = {"version": 1, "branches": [{"name": "root", "operations": [
        {"do": "text", "text": "The sky is"},
        {"do": "gen", "variable": "sky", "params": {"temperature": 0.0, "max_tokens": 8}},
        {"do": "text", "text": ". The sea is"},
        {"do": "gen", "variable": "sea", "params": {"temperature": 0.0, "max_tokens": 8}},
    ]}]}  # fmt: skip
    return [
        *(Known("/v1/completions", {**greedy, "prompt": prompt}) for prompt in prompts),
        Known("/v1/completions", {**greedy, "prompt": "A dog", "temperature": 1.0, "seed": 7}),
        Known("/v1/chat/completions", {**greedy, "messages": messages}),
        Known("/v1/chat/completions", {**greedy, "messages": messages, "response_format": constrained}),
        Known("/v1/messages", {**greedy, "messages": messages}),
        Known("/generate", {"input": {"text": "Red, green"}, "params": {"temperature": 0.0, "max_tokens": 16}}),
        Known("/score", {"input": {"text": "Two and two is"}, "continuations": [" four", " five"]}),
        Known("/v1/programs", {"program": program, "stream": False}),
    ]


def answer_of(route: str, body: dict[str, Any]) -> object:
    """What of an answer's body is the same each time."""
    match route:
        case "/v1/completions":
            return body["choices"][0]["text"]
        case "/v1/chat/completions":
            return body["choices"][0]["message"]["content"]
        case "/v1/messages":
            return body["content"]
        case "/generate":
            return body["outputs"][0]["text"]
        case "/score":
            return [score["token_logprobs"] for score in body["scores"]]
        case _:
            return {name: one.get("value") for name, one in body["variables"].items()}


def folded_answer(route: str, events: Sequence[bytes]) -> str | None:
    """The text of a stream's events; None where the stream is not whole."""
    if not events or events[-1] != b"[DONE]":
        return None
    parts = []
    for event in map(json.loads, events[:-1]):
        if "error" in event:
            return None
        if route == "/generate":
            parts.append(event.get("text", ""))
        elif choices := event.get("choices"):
            choice = choices[0]
            parts.append(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
    return "".join(parts)


def long_program(text: str) -> dict[str, Any]:
    """Two branches of long answers."""
    params = {"temperature": 1.0, "max_tokens": LONG // 2, "ignore_eos": True}
    root = [
        {"do": "text", "text": text},
        {"do": "gen", "variable": "start", "params": {"max_tokens": 8}},
        {"do": "fork", "branches": ["a", "b"]},
        {"do": "join", "branches": ["a", "b"]},
    ]
    others = [
        {"name": name, "operations": [{"do": "gen", "variable": f"v{name}", "params": params}]} for name in "ab"
    ]
    return {"version": 1, "branches": [{"name": "root", "operations": root}, *others]}


def hostile_bodies(model: str) -> list[tuple[str, bytes]]:
    """Routes and bodies; none of them costs a server more than a short answer."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    user = [{"role": "user", "content": "Hello"}]

    def asked(**fields: object) -> bytes:
        return json.dumps({"model": model, "messages": user, "max_tokens": 4, **fields}).encode()

    def schema(of: object) -> bytes:
        return asked(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": of}})

    return [
        (chat, b""),
        (chat, b"{"),
        (chat, b"null"),
        (chat, b"[" * 100_000),
        (chat, b'{"a":' * 1000 + b"1" + b"}" * 1000),
        (chat, b"\xff\xfe\x00"),
        (chat, b'{"model": "\\ud800", "messages": []}'),
        (chat, asked(messages=[])),
        (chat, asked(messages=[{"role": "user", "content": "\ud800"}])),
        (chat, asked(messages=[{"role": "nobody", "content": "x"}])),
        (chat, asked(messages=user * 20_000)),
        (chat, asked(max_tokens=-1)),
        (chat, asked(max_tokens=10**40)),
        (chat, asked(temperature=1e308)),
        (chat, asked(seed=2**70)),
        (chat, asked(n=10**9)),
        (chat, asked(stop=["x" * 10**6])),
        (chat, asked(logit_bias={"99999999": 5})),
        (chat, asked(regex="(" * 500)),
        (chat, asked(regex="(a{1000}){1000}{1000}")),
        (chat, asked(ebnf="root ::= root")),
        (chat, asked(session="no such session")),
        (chat, asked(tools=[{"type": "function", "function": {"name": 5}}])),
        (chat, asked(model="no such model")),
        (chat, schema({"$ref": "#"})),
        (chat, schema({"type": "object", "properties": {"a": {"pattern": "(((("}}})),
        (chat, schema({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}})),
        (text, json.dumps({"model": model, "prompt": [10**9]}).encode()),
        (text, json.dumps({"model": model, "prompt": ["x"] * 5000, "n": 9}).encode()),
        (text, json.dumps({"model": model, "prompt": "word " * 200_000}).encode()),
        ("/generate", b'{"input": {"token_ids": [-1]}}'),
        ("/generate", b'{"input": {}}'),
        ("/score", b'{"input": {"text": "x"}, "continuations": [[]]}'),
        ("/v1/programs", b'{"program": {"version": 1, "branches": []}}'),
        ("/v1/messages", b'{"messages": 5}'),
        ("/v1/embeddings", json.dumps({"model": model, "input": [[]]}).encode()),
        ("/abort", b'{"request_id": null}'),
        ("/tokenize", b'{"text": 5}'),
    ]
