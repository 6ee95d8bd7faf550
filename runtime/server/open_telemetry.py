"""Traces for OpenTelemetry, with the names of its semantic conventions for HTTP and generative AI.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and https://www.w3.org/TR/trace-context/. Where
spans go, how many are kept and what the service is called is said by the SDK's own variables
(``OTEL_EXPORTER_OTLP_*``, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ...).
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import FinishReason, InvalidRequestError, ProgramTag, RequestStats, SamplingParams
from ramet.runtime.server.tracing import AnswerStart, RequestSpan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span

PROVIDER = "ramet"
FAILED = 500
"""A server's span is an error from this status on."""


def traces_to_collector(model: str) -> "OpenTelemetry":
    """Spans go to an OTLP collector over HTTP, http://localhost:4318 unless the SDK's variables say otherwise.

    Raises:
        InvalidRequestError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidRequestError(
            f"otel is true, and OpenTelemetry is not installed ({error}); pip install 'ramet[otel]'",
            field="otel",
        ) from error
    # A name that OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES gives counts before ours.
    named = Resource.create()
    if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
        named = named.merge(Resource({"service.name": PROVIDER}))
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OpenTelemetry(provider, model, closes=provider)


class OpenTelemetry:
    """A span for each HTTP request, and one inside for what the engine computes for it.

    A request with a W3C ``traceparent`` is part of its caller's trace. A program that the server runs has a
    span of its own, whose children are its calls. The calls of one that its client runs, and that came without
    a ``traceparent``, are one trace: its id is made of the program's, and each of them has a link to its HTTP
    request.
    """

    def __init__(self, provider: Any, model: str, *, closes: "TracerProvider | None" = None) -> None:
        """``provider``: an OpenTelemetry TracerProvider. ``model``: the name of the model that is served.
        ``closes``: the provider to shut down in the end."""
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._context = context
        self._tracer = provider.get_tracer("ramet")
        self._propagator = TraceContextTextMapPropagator()
        self._closes = closes
        self._has_parent = context.create_key("ramet-has-parent")
        self._model = model

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[RequestSpan]:
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        parent = self._propagator.extract(carrier)
        has_caller = self._trace.get_current_span(parent).get_span_context().is_valid
        span = self._tracer.start_span(
            method,
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.scheme": "http"},
        )
        inside = self._context.set_value(
            self._has_parent, has_caller, self._trace.set_span_in_context(span, parent)
        )
        token = self._context.attach(inside)
        try:
            yield _RequestSpan(span, method)
        finally:
            self._context.detach(token)
            span.end()

    def answer(self, start: AnswerStart) -> "_AnswerSpan":
        context: Context | None = None
        links: list[Link] = []
        if start.tag.program_id and not self._context.get_value(self._has_parent):
            context = self._of_program(start.tag.program_id)
            around = self._trace.get_current_span().get_span_context()
            if around.is_valid:
                links.append(self._trace.Link(around))
        span = self._tracer.start_span(
            f"{start.operation} {self._model}",
            context=context,
            kind=self._trace.SpanKind.INTERNAL,
            attributes=_asked(start, self._model),
            links=links,
        )
        return _AnswerSpan(span)

    def program(self, program_id: str, name: str) -> "_ProgramSpan":
        """Part of the HTTP request that brought it, which may end before it does."""
        span = self._tracer.start_span(
            f"program {name}",
            kind=self._trace.SpanKind.INTERNAL,
            attributes={"ramet.program.id": program_id, "ramet.program.name": name},
        )
        inside = self._context.set_value(self._has_parent, True, self._trace.set_span_in_context(span))
        return _ProgramSpan(span, inside)

    def close(self) -> None:
        if self._closes is not None:
            self._closes.shutdown()

    def _of_program(self, program_id: str) -> "Context":
        """As if the program had a span of its own, whose calls these are."""
        digest = hashlib.sha256(f"ramet program {program_id}".encode("utf-8", "surrogatepass")).digest()
        parent = self._trace.SpanContext(
            trace_id=int.from_bytes(digest[:16]),
            span_id=int.from_bytes(digest[16:24]),
            is_remote=True,
            trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
        )
        return self._trace.set_span_in_context(self._trace.NonRecordingSpan(parent))


class _RequestSpan:
    def __init__(self, span: "Span", method: str) -> None:
        self._span = span
        self._method = method

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def answered(self, route: str, status: int) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= FAILED:
            self._span.set_attribute("error.type", str(status))
            _mark_failed(self._span)


class _ProgramSpan:
    def __init__(self, span: "Span", context: "Context") -> None:
        self._span = span
        self._inside = context

    @contextmanager
    def inside(self) -> Iterator[None]:
        from opentelemetry import context

        token = context.attach(self._inside)
        try:
            yield
        finally:
            context.detach(token)

    def end(self, status: str) -> None:
        self._span.set_attribute("ramet.program.status", status)
        if status == "failed":
            _mark_failed(self._span)
        self._span.end()


class _AnswerSpan:
    def __init__(self, span: "Span") -> None:
        self._span = span
        self._finish_reasons: list[str] = []
        self._num_output_tokens = 0
        self._has_first_token = False
        self._has_ended = False
        """With scores, or with an error."""

    def started(self, request_id: str) -> None:
        self._span.set_attribute("gen_ai.response.id", request_id)

    def first_token(self, seconds: float) -> None:
        if not self._has_first_token:
            self._has_first_token = True
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def finished(self, reason: FinishReason, stats: RequestStats) -> None:
        self._finish_reasons.append(reason.value)
        self._num_output_tokens += stats.num_output_tokens
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": stats.num_prompt_tokens,
                "gen_ai.usage.output_tokens": self._num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
                "gen_ai.response.finish_reasons": list(self._finish_reasons),
                "ramet.queue_time": stats.queue_time,
            }
        )

    def scored(self) -> None:
        self._has_ended = True

    def failed(self, error: BaseException) -> None:
        # Its message may repeat what was sent.
        self._has_ended = True
        self._span.set_attribute("error.type", type(error).__name__)
        _mark_failed(self._span)

    def end(self) -> None:
        if not self._finish_reasons and not self._has_ended:
            self._span.set_attribute("gen_ai.response.finish_reasons", [FinishReason.ABORT.value])
        self._span.end()


def _mark_failed(span: "Span") -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR))


def _asked(start: AnswerStart, model: str) -> dict[str, Any]:
    params, tag = start.params, start.tag
    return {
        "gen_ai.operation.name": start.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        **({} if params is None else _sampling(params)),
        **({"gen_ai.request.choice.count": start.num_answers} if start.num_answers > 1 else {}),
        **(_program(tag) if tag.program_id else {}),
    }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    told: dict[str, Any] = {
        "gen_ai.output.type": "text" if params.grammar is None else "json",
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
    }
    if params.top_k:
        told["gen_ai.request.top_k"] = params.top_k
    if params.max_tokens is not None:
        told["gen_ai.request.max_tokens"] = params.max_tokens
    if params.seed is not None:
        told["gen_ai.request.seed"] = params.seed
    return told


def _program(tag: ProgramTag) -> dict[str, Any]:
    return {
        "ramet.program.id": tag.program_id,
        "ramet.program.branch": tag.branch,
        "ramet.program.step": tag.step,
    }
