"""What clients of a soak do that leaves something with the server: stored responses, and programs that wait."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx

from benchmarks.load_client import stream_events
from benchmarks.soak_traffic import LATER, Ledger, answered

RESPONSES, PROGRAMS = "/v1/responses", "/v1/programs"
POLL_SECONDS = 0.2
TOOL_RESULT = "It is 21 degrees and sunny."


class KeptTraffic:
    """Single acts, each of which ends by itself, with their right answers where they have one."""

    def __init__(
        self, http: httpx.AsyncClient, model: str, ledger: Ledger, seed: int, *, tool_tokens: int = 48
    ) -> None:
        """``tool_tokens``: in which the model can write its call of a tool."""
        self._http = http
        self._model = model
        self._program = weather_program(tool_tokens)
        self._ledger = ledger
        self._random = random.Random(f"soak kept {seed}")
        self._conversation: list[str] = []
        self._weather = ""

    async def learn(self) -> None:
        """Ask for the right answers, while nothing else happens. Raises RuntimeError where there is none."""
        self._conversation = await self._converse(RuntimeError)
        told = await self._with_tool()
        if told is None:
            raise RuntimeError("a program that calls a tool does not end")
        self._weather = told

    async def keep_response(self) -> None:
        """A conversation by ``previous_response_id``, read again as it was said; half are deleted."""
        said = await self._converse(None)
        if said and said != self._conversation:
            self._ledger.fault(f"stored responses said {said!r} instead of {self._conversation!r}")
        self._ledger.done["stored conversations"] += 1

    async def use_tool(self) -> None:
        """A program whose tool is answered."""
        told = await self._with_tool()
        if told is not None and told != self._weather:
            self._ledger.fault(f"a program with a tool said {told!r} instead of {self._weather!r}")
        self._ledger.done["programs with tools"] += 1

    async def run_behind(self) -> None:
        """A program in the background: it goes on alone, and comes to what it comes to with a client."""
        body = {"program": self._program["program"], "background": True, "stream": False}
        begun = await answered(self._http, PROGRAMS, body)
        if begun.status_code != 200:
            self._ledger.fault(f"{PROGRAMS} answered {begun.status_code}: {begun.text[:300]}")
            return
        path = f"{PROGRAMS}/{begun.json()['id']}"
        state = begun.json()
        while state["status"] in ("running", "waiting"):
            for asked in state["tool_calls"]:
                results = [{"id": call["id"], "content": TOOL_RESULT} for call in asked["calls"]]
                told = {"variable": asked["variable"], "results": results}
                await self._expect(200, "POST", f"{path}/tool_results", json=told)
            await asyncio.sleep(POLL_SECONDS)
            state = (await self._expect(200, "GET", path)).json()
        said = {name: one["value"] for name, one in state["variables"].items()}
        if state["status"] != "completed" or said != {"answer": self._weather}:
            self._ledger.fault(f"a program in the background came to {state}")
        if self._random.random() < 0.5:
            await self._expect(200, "DELETE", path)
            await self._expect(404, "GET", path)
        self._ledger.done["programs in the background"] += 1

    async def forsake_tool(self) -> None:
        """A program that waits for a tool, and never hears of it: its client leaves, or cancels it."""
        cancels = self._random.random() < 0.5
        path = ""
        async with self._http.stream("POST", PROGRAMS, json=self._program) as response:
            async for event in program_events(response):
                if event["type"] == "program.started":
                    path = f"{PROGRAMS}/{event['id']}"
                elif event["type"] == "tool_calls":
                    if not cancels:
                        break
                    await self._expect(200, "DELETE", path)
                elif event["type"] == "program.done" and event["status"] != "cancelled":
                    self._ledger.fault(f"a program that waits for a tool ended: {event}")
        if response.status_code != 200 and response.status_code not in LATER:
            self._ledger.fault(f"{PROGRAMS} answered {response.status_code}")
        self._ledger.done["programs left waiting"] += 1

    async def _converse(self, refusal: type[Exception] | None) -> list[str]:
        """What two responses said; ``refusal`` is raised where there is no answer, else it is a fault."""
        said: list[str] = []
        previous: dict[str, str] = {}
        stored: list[dict[str, Any]] = []
        for question in ("Name three animals.", "And three plants?"):
            body = {
                "model": self._model,
                "input": question,
                "store": True,
                "temperature": 0.0,
                "max_output_tokens": 12,
                **previous,
            }
            response = await answered(self._http, RESPONSES, body)
            if response.status_code != 200:
                text = f"{RESPONSES} answered {response.status_code}: {response.text[:300]}"
                if refusal is not None:
                    raise refusal(text)
                self._ledger.fault(text)
                return []
            stored.append(response.json())
            previous = {"previous_response_id": stored[-1]["id"]}
            said += [part["text"] for item in stored[-1]["output"] for part in item["content"]]
        for one in stored:
            again = await self._expect(200, "GET", f"{RESPONSES}/{one['id']}")
            if again.is_success and again.json() != one:
                self._ledger.fault(f"a stored response is {again.text[:300]} instead of {str(one)[:300]}")
        if self._random.random() < 0.5:
            for one in stored:
                await self._expect(200, "DELETE", f"{RESPONSES}/{one['id']}")
                await self._expect(404, "GET", f"{RESPONSES}/{one['id']}")
        return said

    async def _with_tool(self) -> str | None:
        """What the model says of the tool's result; None: there was no room, or it is a fault."""
        value: str | None = None
        program_id = ""
        async with self._http.stream("POST", PROGRAMS, json=self._program) as response:
            if response.status_code in LATER:
                return None
            async for event in program_events(response):
                match event["type"]:
                    case "program.started":
                        program_id = event["id"]
                    case "tool_calls":
                        results = [{"id": call["id"], "content": TOOL_RESULT} for call in event["calls"]]
                        body = {"variable": event["variable"], "results": results}
                        await self._expect(200, "POST", f"{PROGRAMS}/{program_id}/tool_results", json=body)
                    case "variable.done":
                        value = event["value"]
                    case "program.done" if event["status"] == "completed":
                        return value
        self._ledger.fault(f"a program with a tool has not completed: {response.status_code}, {value!r}")
        return None

    async def _expect(self, status: int, method: str, path: str, **options: Any) -> httpx.Response:
        response = await self._http.request(method, path, **options)
        if response.status_code != status:
            self._ledger.fault(f"{method} {path} answered {response.status_code}: {response.text[:300]}")
        return response


async def program_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Up to the end, or to what is no event of a program's."""
    async for data in stream_events(response):
        event = json.loads(data) if data != b"[DONE]" else {}
        if "type" not in event:
            return
        yield event


def weather_program(max_tokens: int) -> dict[str, Any]:
    """Greedy; it has to call the tool once, and then says something of what that gave."""
    place = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"]}
    tool = {"name": "weather", "parameters": {**place, "additionalProperties": False}}
    operations = [
        {"do": "begin_role", "role": "user"},
        {"do": "text", "text": "What is the weather like in Rome?"},
        {"do": "end_role", "role": "user"},
        {"do": "begin_role", "role": "assistant"},
        {
            "do": "gen",
            "variable": "answer",
            "params": {"temperature": 0.0, "max_tokens": max_tokens},
            "tools": {"tools": [tool], "choice": "required", "max_rounds": 1},
        },
        {"do": "end_role", "role": "assistant"},
    ]
    return {"program": {"version": 1, "branches": [{"name": "root", "operations": operations}]}}
