"""Programs on servers that speak OpenAI's API: what they are asked, and what becomes of their answers."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

import ramet
from ramet.lang.backends.base import Backend
from ramet.lang.backends.http_client import Connection, RetryPolicy
from ramet.lang.backends.openai_api import OpenAI
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError, Logprob
from tests.lang.backends.chat_server import Body, Recorder, Says, Script, chat_handler
from tests.lang.backends.loopback import Answer, of_json, serving

CONNECTION = Connection(timeout=60.0, retries=RetryPolicy(max_retries=1, first_delay=0.001))


@contextmanager
def opened(script: Script, flavour: str | None = None, **options: Any) -> Iterator[tuple[OpenAI, list[Body]]]:
    recorder = Recorder()
    with (
        serving(chat_handler(script, recorder)) as server,
        OpenAI(
            "m", base_url=f"{server.url}/v1/", flavour=flavour, api_key="k", connection=CONNECTION, **options
        ) as backend,
    ):
        yield backend, recorder.bodies


@ramet.function
def chat(s: Any, **options: Any) -> None:
    s += ramet.system("Be brief.")
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("where", **options))
    s += ramet.user("Sure?") + ramet.assistant(ramet.gen("sure", **options))


@ramet.function
def ask(s: Any, **options: Any) -> None:
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("x", **options))


@ramet.function
def complete(s: Any, **options: Any) -> None:
    s += "Once" + ramet.gen("x", **options)


def echo_last(body: Body) -> Says:
    return Says(f"to {body['messages'][-1]['content']}")


class TestChat:
    def test_a_conversation(self) -> None:
        with opened(echo_last) as (backend, bodies):
            seam: Backend = backend
            state = chat.run(backend=seam)
        assert [state["where"], state["sure"]] == ["to Where?", "to Sure?"]
        assert bodies[1]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": "to Where?"},
            {"role": "user", "content": "Sure?"},
        ]
        meta = state.get_meta_info("sure")
        assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (11, 7, 2)
        assert meta["finish_reason"] == "stop"
        assert meta["system_fingerprint"] == "fp"
        assert meta["stats"].ttft <= meta["stats"].e2e

    def test_what_is_asked_for_is_all_that_is_said(self) -> None:
        with opened(lambda body: Says("a")) as (backend, bodies):
            ask.run(backend=backend, max_tokens=5)
        assert bodies == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "Where?"}],
                "max_tokens": 5,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ]

    def test_a_stream_is_what_the_variable_is(self) -> None:
        with opened(lambda body: Says("one two three")) as (backend, _):
            state = ask.stream(backend=backend)
            assert list(state.text_iter("x")) == ["one", " two", " three"]
            assert state["x"] == "one two three"

    def test_several_answers(self) -> None:
        with opened(lambda body: [Says(f"{i} x" * i) for i in range(body["n"])]) as (backend, _):
            state = ask.run(backend=backend, n=3)
        assert state["x"] == ["", "1 x", "2 x2 x"]

    def test_forks_run_at_once(self) -> None:
        @ramet.function
        def branches(s: Any) -> None:
            s += ramet.user("Go")
            forks = s.fork(20)
            for number, fork in enumerate(forks):
                fork += (
                    ramet.assistant(ramet.gen("x")) + ramet.user(str(number)) + ramet.assistant(ramet.gen("y"))
                )
            forks.join()

        with opened(echo_last) as (backend, bodies):
            state = branches.run(backend=backend)
        assert state["y"] == [f"to {number}" for number in range(20)]
        assert len(bodies) == 40

    def test_a_failed_branch_ends_what_its_siblings_stream(self) -> None:
        begun = asyncio.Event()

        async def handler(request: Any) -> Answer:
            if "fail" in json.dumps(request.json["messages"]):
                await begun.wait()
                return of_json({"error": {"message": "no"}}, 400)
            return Answer(parts=endless())

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
                begun.set()
                await asyncio.sleep(0.01)

        @ramet.function
        def branches(s: Any) -> None:
            for fork, text in zip(s.fork(2), ("go on", "fail"), strict=True):
                fork += ramet.user(text) + ramet.assistant(ramet.gen("x"))

        with serving(handler) as server, OpenAI("m", base_url=server.url, connection=CONNECTION) as backend:
            with pytest.raises(GenerationError, match="status 400: no"):
                branches.run(backend=backend)
            assert server.left.wait(60)

    def test_many_branches_take_turns_on_few_connections(self) -> None:
        @ramet.function
        def branches(s: Any) -> None:
            forks = s.fork(300)
            for number, fork in enumerate(forks):
                fork += ramet.user(str(number)) + ramet.assistant(ramet.gen("x"))
            forks.join()

        num_threads = threading.active_count()
        connection = Connection(max_connections=8)
        with serving(chat_handler(echo_last)) as server:
            with OpenAI("m", base_url=server.url, connection=connection) as backend:
                state = branches.run(backend=backend)
            assert state["x"] == [f"to {number}" for number in range(300)]
            assert len({request.connection for request in server.requests}) <= 8
            assert threading.active_count() <= num_threads + 4

    def test_reasoning_is_no_part_of_the_answer(self) -> None:
        @ramet.function
        def reasoned(s: Any) -> None:
            s += ramet.user("?")
            s += ramet.assistant(ramet.separate_reasoning(ramet.gen("x"), "deepseek-r1"))
            s += ramet.user("?") + ramet.assistant(ramet.gen("y"))

        with opened(lambda body: Says("the answer", reasoning="well then")) as (backend, bodies):
            state = reasoned.run(backend=backend)
        assert (state["x"], state["x_reasoning_content"]) == ("the answer", "well then")
        assert state["y"] == "the answer"
        assert state.get_meta_info("y")["reasoning_content"] == "well then"
        assert bodies[1]["messages"][1] == {"role": "assistant", "content": "the answer"}

    def test_images(self) -> None:
        @ramet.function
        def look(s: Any) -> None:
            s += ramet.user("See" + ramet.image("https://x.org/a.png")) + ramet.assistant(ramet.gen("x"))

        with opened(lambda body: Says("a")) as (backend, bodies):
            look.run(backend=backend)
        assert bodies[0]["messages"][0]["content"] == [
            {"type": "text", "text": "See"},
            {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        ]

    def test_logprobs_have_the_tokens_texts_where_there_are_no_ids(self) -> None:
        with opened(lambda body: Says("a b")) as (backend, bodies):
            meta = ask.run(backend=backend, logprobs=2).get_meta_info("x")
        assert (bodies[0]["logprobs"], bodies[0]["top_logprobs"]) == (True, 2)
        assert [entry["token"] for entry in meta["logprobs_content"]] == ["a", " b"]
        assert [one.chosen for one in meta["logprobs"]] == [Logprob(-1, -0.5, 1)] * 2

    def test_extra_body(self) -> None:
        extra = {"service_tier": "flex", "stream_options": None}
        with opened(lambda body: Says("a"), extra_body=extra) as (backend, bodies):
            ask.run(backend=backend)
        assert bodies[0]["service_tier"] == "flex"
        assert "stream_options" not in bodies[0]

    def test_a_backend_that_is_dropped_leaves_no_connection_open(self) -> None:
        with serving(chat_handler(echo_last)) as server:
            assert ask.run(backend=OpenAI("m", base_url=server.url))["x"] == "to Where?"
            gc.collect()
            assert server.closed.wait(60)

    def test_what_the_server_offers(self) -> None:
        with opened(echo_last) as (backend, _):
            assert ramet.get_server_info(backend)["models"] == [{"id": "m", "object": "model"}]
            with pytest.raises(UnsupportedError, match="cannot be told to drop its cache"):
                ramet.flush_cache(backend)


class TestTools:
    def test_the_model_calls_and_is_told(self) -> None:
        def weather(city: str, days: int = 1) -> str:
            """The weather."""
            return f"rain in {city} for {days}"

        def script(body: Body) -> Says:
            if body["messages"][-1]["role"] == "tool":
                return Says(f"it says {body['messages'][-1]['content']}")
            return Says(calls=[("id7", "weather", '{"city": "Rome", "days": 2}')], finish_reason="tool_calls")

        with opened(script) as (backend, bodies):
            state = ask.run(backend=backend, tools=[weather])
        assert state["x"] == "it says rain in Rome for 2"
        assert bodies[0]["tool_choice"] == "auto"
        assert bodies[0]["tools"][0]["function"]["name"] == "weather"
        assert bodies[1]["messages"][1:] == [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "id7",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 2}'},
                    }
                ],
            },
            {"role": "tool", "content": "rain in Rome for 2", "tool_call_id": "id7"},
        ]


class Answered(BaseModel):
    place: str
    sure: bool


class TestConstraints:
    def test_a_schema(self) -> None:
        with opened(lambda body: Says('{"place": "Rome", "sure": true}')) as (backend, bodies):
            state = ask.run(backend=backend, json_schema=Answered)
        assert state["x"] == Answered(place="Rome", sure=True)
        described = bodies[0]["response_format"]["json_schema"]
        assert described["strict"] is True
        assert described["schema"]["properties"].keys() == {"place", "sure"}

    def test_a_choice_comes_in_an_object(self) -> None:
        with opened(lambda body: Says('{"answer": "no way"}')) as (backend, bodies):
            state = ask.run(backend=backend, choices=["yes", "no way"])
            assert state["x"] == "no way"
            assert state.get_meta_info("x")["index"] == 1
        enum = bodies[0]["response_format"]["json_schema"]["schema"]["properties"]["answer"]["enum"]
        assert enum == ["yes", "no way"]

    def test_an_answer_that_is_cut(self) -> None:
        cut = Says('{"answer": "Tr', finish_reason="length")
        with opened(lambda body: cut) as (backend, _), pytest.raises(GenerationError, match="raise max_tokens"):
            ask.run(backend=backend, dtype=bool)

    def test_a_value_that_is_no_object(self) -> None:
        with opened(lambda body: Says('{"answer": [1, "é"]}')) as (backend, bodies):
            state = ask.run(backend=backend, json_schema={"type": "array"})
        assert json.loads(state["x"]) == [1, "é"]
        assert bodies[0]["response_format"]["json_schema"]["schema"]["properties"] == {
            "answer": {"type": "array"}
        }

    @pytest.mark.parametrize(
        ("options", "answer", "fault"),
        [
            ({"regex": "[0-9]+"}, '{"answer": "x"}', r"answered 'x': it does not match '\[0-9\]\+'"),
            ({"json_schema": Answered}, '{"place": "Rome"}', r"\$: 'sure' is a required property"),
            ({"json_schema": Answered}, "Rome", "it is no JSON"),
            ({"choices": ["a", "b"]}, '{"answer": "c"}', "it is none of the options"),
        ],
    )
    def test_a_server_that_does_not_hold_its_model(self, options: Any, answer: str, fault: str) -> None:
        with opened(lambda body: Says(answer)) as (backend, _), pytest.raises(GenerationError, match=fault):
            ask.run(backend=backend, **options)

    def test_a_bool(self) -> None:
        with opened(lambda body: Says('{"answer": "True"}')) as (backend, _):
            assert ask.run(backend=backend, dtype=bool)["x"] is True

    @pytest.mark.parametrize("flavour", ["vllm", "sglang", "ramet"])
    def test_a_regex(self, flavour: str) -> None:
        with opened(lambda body: Says("42"), flavour) as (backend, bodies):
            assert ask.run(backend=backend, regex="[0-9]+")["x"] == "42"
        body = bodies[0]
        assert body.get("regex", body.get("structured_outputs", {}).get("regex")) == "[0-9]+"


class TestFlavours:
    def test_everything_a_vllm_server_has(self) -> None:
        options: dict[str, Any] = {
            "temperature": 0.5,
            "min_p": 0.1,
            "min_tokens": 2,
            "stop": "x",
            "stop_token_ids": [5],
            "include_stop": True,
            "ignore_eos": True,
            "logit_bias": {5: 1.0},
            "logprobs": 1,
            "priority": 3,
        }
        with opened(lambda body: Says("a b", token_ids=True, stop_reason=5), "vllm") as (backend, bodies):
            state = ask.run(backend=backend, max_tokens=9, **options)
        body = bodies[0]
        expected = {
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.1,
            "repetition_penalty": 1.0,
            "min_tokens": 2,
            "stop": ["x"],
            "stop_token_ids": [5],
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "logit_bias": {"5": 1.0},
            "priority": -3,
            "return_token_ids": True,
            "max_tokens": 9,
        }
        assert {key: body.get(key) for key in expected} == expected
        assert state.get_meta_info("x")["token_ids"] == (100, 101)
        assert state.get_meta_info("x")["stop_reason"] == 5

    @pytest.mark.parametrize(("flavour", "goes_on"), [("vllm", True), ("sglang", True), (None, False)])
    def test_an_answer_that_begins_with_text(self, flavour: str | None, goes_on: bool) -> None:
        @ramet.function
        def begun(s: Any) -> None:
            s += ramet.user("Where?")
            s += ramet.assistant("In " + ramet.gen("x"))

        with opened(lambda body: Says("Rome"), flavour) as (backend, bodies):
            if goes_on:
                assert begun.run(backend=backend)["x"] == "Rome"
                assert bodies[0]["continue_final_message"] is True
                assert bodies[0]["messages"][-1] == {"role": "assistant", "content": "In "}
            else:
                with pytest.raises(
                    UnsupportedError, match="cannot go on in the middle of the assistant's turn"
                ):
                    begun.run(backend=backend)
                assert bodies == []

    def test_text_without_roles_is_completed(self) -> None:
        with opened(lambda body: Says(" upon a time"), "vllm") as (backend, bodies):
            state = complete.run(backend=backend, logprobs=1)
            assert state.text() == "Once upon a time"
        assert bodies[0]["prompt"] == "Once"
        assert bodies[0]["logprobs"] == 1
        assert state.get_meta_info("x")["logprobs"][0].chosen.logprob == -0.5

    def test_salts(self) -> None:
        with opened(lambda body: Says("a"), "vllm") as (backend, _):
            assert backend.prompt(cache_salt="s") is not None
        with (
            opened(lambda body: Says("a")) as (backend, _),
            pytest.raises(UnsupportedError, match="cache_salt"),
        ):
            backend.prompt(cache_salt="s")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"top_k": 5}, "does not honour top_k=5"),
            ({"ignore_eos": True}, "does not honour ignore_eos"),
            (
                {"ebnf": "root ::= x"},
                "cannot constrain an answer by ebnf; it can by choice, json_schema, regex",
            ),
            ({"priority": 1}, "has no priorities"),
            ({"dtype": bool, "logprobs": 1}, "leave logprobs out"),
        ],
    )
    def test_what_openai_does_not_have_is_refused(self, options: dict[str, Any], message: str) -> None:
        with opened(echo_last) as (backend, bodies):
            with pytest.raises(UnsupportedError, match=message):
                ask.run(backend=backend, **options)
            assert bodies == []

    def test_openais_own_limits(self) -> None:
        with opened(echo_last, "openai") as (backend, bodies):
            with pytest.raises(UnsupportedError, match="20 logprobs a token at most; logprobs is 21"):
                ask.run(backend=backend, logprobs=21)
            ask.run(backend=backend, max_tokens=7)
        assert bodies[0]["max_completion_tokens"] == 7

    @pytest.mark.parametrize("options", [{"stop": list("bcdef")}, {"stop_regex": "[b-f]"}])
    def test_stops_that_the_server_does_not_take_are_looked_for_here(self, options: dict[str, Any]) -> None:
        with opened(lambda body: Says("a a a b a a"), "openai") as (backend, bodies):
            state = ask.run(backend=backend, **options)
        assert state["x"] == "a a a "
        assert state.get_meta_info("x")["finish_reason"] == "stop"
        assert "stop" not in bodies[0]

    @pytest.mark.parametrize("flavour", [None, "vllm", "sglang", "ramet"])
    def test_numbers(self, flavour: str | None) -> None:
        # The first is held to a string in an object, the others stop by themselves or are stopped here.
        answer = {None: '{"answer": "42 of"}', "vllm": "42 of"}.get(flavour, "42")
        with opened(lambda body: Says(answer), flavour) as (backend, _):
            assert ask.run(backend=backend, dtype=int)["x"] == 42

    def test_openais_own_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(InvalidRequestError, match="api_key is missing; give it, or set OPENAI_API_KEY"):
            OpenAI("gpt-5")
        assert not OpenAI("gpt-5", api_key="k").capabilities.text_completion
        instruct = OpenAI("gpt-3.5-turbo-instruct", api_key="k").capabilities
        assert (instruct.roles, instruct.select, instruct.grammars) == (False, False, frozenset())
        with pytest.raises(InvalidRequestError, match="flavour is 'x'; it must be one of openai, vllm"):
            OpenAI("m", base_url="http://x", flavour="x")

    def test_the_key_goes_to_openai_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        seen: list[str | None] = []

        def script(body: Body) -> Says:
            return Says("a")

        async def handler(request: Any) -> Answer:
            seen.append(request.headers.get("authorization"))
            return await chat_handler(script)(request)

        with serving(handler) as server:
            with OpenAI("m", base_url=server.url) as backend:
                ask.run(backend=backend)
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            with OpenAI("m") as backend:
                ask.run(backend=backend)
        assert seen == [None, "Bearer secret"]


class TestErrors:
    @pytest.mark.parametrize(
        ("script", "message"),
        [
            (
                lambda body: of_json({"error": {"message": "too hot", "param": "temperature"}}, 400),
                r"answered with status 400: too hot \(field 'temperature'\) \(in program 'ask'.*variable 'x'",
            ),
            (lambda body: of_json({"error": {"message": "slow down"}}, 429), "status 429: slow down"),
            (lambda body: Says("a", finish_reason="content_filter"), "content filter"),
            (lambda body: Says(refusal="I will not"), "the model refuses to answer: I will not"),
        ],
    )
    def test_servers_that_refuse(self, script: Callable[[Body], Says | Answer], message: str) -> None:
        with opened(script) as (backend, _), pytest.raises(GenerationError, match=message):
            ask.run(backend=backend)

    def test_outside_of_the_assistants_turn(self) -> None:
        @ramet.function
        def wrong(s: Any) -> None:
            s += ramet.user("I say " + ramet.gen("x"))

        with opened(echo_last) as (backend, _), pytest.raises(UnsupportedError, match="inside the user role"):
            wrong.run(backend=backend)


class TestSelect:
    def test_the_model_spells_an_option(self) -> None:
        def script(body: Body) -> Says:
            assert body["structured_outputs"] == {"choice": ["in Rome", "at sea"]}
            assert body["temperature"] == 0.0
            return Says("at sea")

        @ramet.function
        def chosen(s: Any) -> None:
            s += ramet.user("?") + ramet.assistant("We are " + ramet.select("x", choices=["in Rome", "at sea"]))

        with opened(script, "vllm") as (backend, bodies):
            state = chosen.run(backend=backend)
        assert state["x"] == "at sea"
        assert state.get_meta_info("x")["scores"] == (float("-inf"), -1.0)
        assert state.messages()[-1]["content"] == "We are at sea"
        assert len(bodies) == 1

    def test_options_are_scored_by_echo(self) -> None:
        def script(body: Body) -> Answer:
            assert (body["echo"], body["temperature"]) == (True, 0.0)
            choices = []
            for index, text in enumerate(body["prompt"]):
                tokens = ["<s>", *text, "!"]
                values = [None, *[-0.1 if token != "b" else -2.0 for token in tokens[1:]]]
                choices.append({"index": index, "logprobs": {"tokens": tokens, "token_logprobs": values}})
            return of_json({"choices": choices[::-1], "usage": {"prompt_tokens": 9}})

        @ramet.function
        def chosen(s: Any) -> None:
            s += "x: " + ramet.select("x", choices=["ab", "aaa"]) + ", done"

        with opened(script, "sglang") as (backend, _):
            state = chosen.run(backend=backend)
        assert state["x"] == "aaa"
        assert state.get_meta_info("x")["scores"] == pytest.approx((-1.05, -0.1))
        assert state.text() == "x: aaa, done"

    def test_where_it_cannot(self) -> None:
        @ramet.function
        def chosen(s: Any) -> None:
            s += "x" + ramet.select("x", choices=["a", "b"])

        message = "does not tell the log probabilities of a prompt"
        with opened(echo_last) as (backend, _), pytest.raises(UnsupportedError, match=message):
            chosen.run(backend=backend)
