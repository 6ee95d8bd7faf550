"""Spans of a server, in memory: their names, their place in a trace, and what is never in them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server import ServerConfig, create_app
from ramet.runtime.server.open_telemetry import OpenTelemetry, traces_to_collector
from tests.runtime.server.speaking_server import SECONDS, Served, open_engine, spec, wait_until_idle

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@contextmanager
def traced(config: ServerConfig | None = None) -> Iterator[tuple[Served, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with open_engine(spec()) as engine:
        app = create_app(engine, spec(), config, tracing=OpenTelemetry(provider, "speaking"))
        yield Served(app, engine, {}), exporter
        wait_until_idle(engine)
    provider.shutdown()


def spans_of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    exporter.clear()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_a_span_inside_of_its_request(stream: bool) -> None:
    with traced() as (server, exporter):
        server.chat("a secret, say:hello", stream=stream, max_tokens=50, seed=3)
        spans = spans_of(exporter)
        assert set(spans) == {"POST /v1/chat/completions", "chat speaking"}
        request, answer = spans["POST /v1/chat/completions"], spans["chat speaking"]
        assert request.kind is SpanKind.SERVER
        assert request.parent is None
        assert attributes(request) == {
            "http.request.method": "POST",
            "url.scheme": "http",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
        }
        assert answer.parent == request.get_span_context()
        told = attributes(answer)
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.provider.name"] == "ramet"
        assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "speaking"
        assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.seed"]) == (50, 3)
        assert told["gen_ai.usage.input_tokens"] == len("user: a secret, say:hello")
        assert told["gen_ai.usage.output_tokens"] == 6
        assert told["gen_ai.response.finish_reasons"] == ("stop",)
        assert told["gen_ai.response.time_to_first_chunk"] > 0
        assert "secret" not in answer.to_json() + request.to_json()
        assert "hello" not in answer.to_json()


def test_a_callers_trace_goes_on() -> None:
    with traced() as (server, exporter):
        body = {"prompt": "say:x", "program": {"program_id": "p"}}
        server.post("/v1/completions", body, headers=CALLER)
        spans = spans_of(exporter)
        request = spans["POST /v1/completions"]
        assert request.parent is not None
        assert f"{request.parent.span_id:016x}" == PARENT
        assert {trace_of(span) for span in spans.values()} == {TRACE}
        # What is no traceparent begins a trace of its own.
        for wrong in ("x", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{PARENT}", "\xff"):
            server.post(
                "/v1/completions",
                {"prompt": "say:x"},
                headers={"traceparent": wrong.encode("latin-1").decode("ascii", "ignore")},
            )
            found = spans_of(exporter)
            assert found["POST /v1/completions"].parent is None
            assert TRACE not in {trace_of(span) for span in found.values()}


def test_the_calls_of_a_program_are_one_trace() -> None:
    with traced() as (server, exporter):
        traces: dict[str, str] = {}
        for name in ("one", "two"):
            for step in range(2):
                program = {"program_id": name, "branch": "b", "step": step}
                server.chat("say:x", program=program)
                spans = spans_of(exporter)
                answer, request = spans["chat speaking"], spans["POST /v1/chat/completions"]
                told = attributes(answer)
                assert (told["ramet.program.id"], told["ramet.program.branch"]) == (name, "b")
                assert told["ramet.program.step"] == step
                assert [link.context for link in answer.links] == [request.get_span_context()]
                assert traces.setdefault(name, trace_of(answer)) == trace_of(answer)
                assert trace_of(request) != trace_of(answer)
        assert traces["one"] != traces["two"]


PROGRAM: dict[str, Any] = {
    "version": 1,
    "name": "chosen",
    "branches": [
        {
            "name": "root",
            "operations": [
                {"do": "text", "text": "a secret say:x"},
                {"do": "gen", "variable": "first", "params": {"max_tokens": 3}},
                {"do": "fork", "branches": ["b"]},
                {"do": "join", "branches": ["b"]},
                {"do": "select", "variable": "choice", "options": ["no", "yes"]},
            ],
        },
        {"name": "b", "operations": [{"do": "gen", "variable": "second", "params": {"max_tokens": 3}}]},
    ],
}


@pytest.mark.parametrize("headers", [{}, CALLER])
def test_a_program_that_the_server_runs_is_a_span_around_its_calls(headers: dict[str, str]) -> None:
    with traced() as (server, exporter):
        server.post("/v1/programs", {"program": PROGRAM, "stream": False}, headers=headers)
        spans = list(exporter.get_finished_spans())
        (request,) = (span for span in spans if span.name == "POST /v1/programs")
        (program,) = (span for span in spans if span.name == "program chosen")
        calls = [span for span in spans if span not in (request, program)]
        assert program.parent == request.get_span_context()
        assert attributes(program)["ramet.program.status"] == "completed"
        assert {trace_of(span) for span in spans} == {TRACE if headers else trace_of(request)}
        assert sorted(span.name for span in calls) == ["score speaking", *["text_completion speaking"] * 2]
        for call in calls:
            assert call.parent == program.get_span_context()
            assert call.links == ()
            told = attributes(call)
            assert told["ramet.program.id"] == attributes(program)["ramet.program.id"]
            assert ("gen_ai.request.temperature" in told) == call.name.startswith("text")
        branches = {attributes(call)["ramet.program.branch"] for call in calls}
        assert len(branches) == 2
        assert "secret" not in "".join(span.to_json() for span in spans)


def test_programs_that_fail_or_are_refused_end_their_spans() -> None:
    with traced() as (server, exporter):
        failing = {**PROGRAM, "branches": [{"name": "root", "operations": [
            {"do": "text", "text": "row error"}, {"do": "gen", "variable": "x"},
        ]}]}  # fmt: skip
        server.post("/v1/programs", {"program": failing, "stream": False})
        (program,) = (span for span in exporter.get_finished_spans() if span.name == "program chosen")
        assert program.status.status_code is StatusCode.ERROR
        exporter.clear()
        unfinished = {**PROGRAM, "branches": [{"name": "root", "operations": [
            {"do": "end_role", "role": "user"},
        ]}]}  # fmt: skip
        assert server.post("/v1/programs", {"program": unfinished, "stream": False}).status_code == 400
        (program,) = (span for span in exporter.get_finished_spans() if span.name == "program chosen")
        assert attributes(program)["ramet.program.status"] == "failed"


def test_scores_are_spans() -> None:
    with traced() as (server, exporter):
        server.post("/score", {"input": {"text": "a"}, "continuations": ["b", "c"]})
        score = spans_of(exporter)["score speaking"]
        assert attributes(score)["gen_ai.request.choice.count"] == 2
        assert "gen_ai.response.finish_reasons" not in attributes(score)
        server.post("/score", {"input": {"token_ids": [65] * 3000}, "continuations": ["b"]})
        assert attributes(spans_of(exporter)["score speaking"])["error.type"] == "PromptTooLongError"


def test_failures_are_errors_without_what_was_sent() -> None:
    with traced() as (server, exporter):
        server.chat("row error")
        spans = spans_of(exporter)
        assert spans["chat speaking"].status.status_code is StatusCode.ERROR
        assert attributes(spans["chat speaking"])["error.type"] == "RequestFailedError"
        assert spans["POST /v1/chat/completions"].status.status_code is StatusCode.ERROR
        # A client's own mistake is no error of the server's, and never reaches the engine.
        server.chat("x", temperature=-1)
        (request,) = spans_of(exporter).values()
        assert request.status.status_code is StatusCode.UNSET
        assert attributes(request)["http.response.status_code"] == 400
        server.complete([65] * 3000)
        assert attributes(spans_of(exporter)["text_completion speaking"])["error.type"] == "PromptTooLongError"
        server.get("/a/secret/path")
        assert set(spans_of(exporter)) == {"GET unknown"}
        server.chat("slow", max_tokens=1900, timeout=0.05)
        assert attributes(spans_of(exporter)["chat speaking"])["error.type"] == "HttpError"


def test_probes_are_not_traced() -> None:
    with traced() as (server, exporter):
        for path in ("/health", "/ready", "/metrics", "/activity", "/cache_tree"):
            assert server.get(path).status_code == 200
        assert spans_of(exporter) == {}


def test_several_answers_are_one_span() -> None:
    with traced() as (server, exporter):
        server.complete(["say:a", "say:bb"], n=2)
        answer = spans_of(exporter)["text_completion speaking"]
        told = attributes(answer)
        assert told["gen_ai.request.choice.count"] == 4
        assert told["gen_ai.usage.output_tokens"] == 2 * (2 + 3)
        assert told["gen_ai.response.finish_reasons"] == ("stop",) * 4


def test_requests_at_once_keep_their_places() -> None:
    async def ask(server: Served) -> None:
        async with server.client() as client:
            bodies = [{"model": "speaking", "prompt": f"say:{index}"} for index in range(6)]
            headers = [{"traceparent": f"00-{index + 1:032x}-{PARENT}-01"} for index in range(6)]
            await asyncio.gather(
                *[
                    client.post("/v1/completions", json=body, headers=one)
                    for body, one in zip(bodies, headers, strict=True)
                ]
            )

    with traced() as (server, exporter):
        asyncio.run(asyncio.wait_for(ask(server), SECONDS))
        spans = exporter.get_finished_spans()
        assert len(spans) == 12
        for span in spans:
            (other,) = [one for one in spans if one is not span and trace_of(one) == trace_of(span)]
            assert span.name != other.name


def test_the_collector_is_set_up_by_the_sdks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is recorded, and so nothing sent.
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    for name, called in (("", "ramet"), ("mine", "mine")):
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
        tracing = traces_to_collector("m")
        provider = tracing._closes
        assert provider is not None
        assert provider.resource.attributes["service.name"] == called
        with tracing.request("GET", {}) as span:
            assert len(span.trace_id) == 32
        tracing.close()
        tracing.close()


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InvalidRequestError, match=r"ramet\[otel\]"):
        traces_to_collector("m")


def test_a_server_that_traces_nothing_does_not_load_it() -> None:
    program = (
        "import sys; from ramet.runtime.server import create_app; create_app.__name__;"
        "print(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "False"
