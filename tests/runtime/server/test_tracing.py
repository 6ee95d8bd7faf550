"""Without tracing there is something to call all the same."""

from ramet.runtime.protocol import FinishReason, ProgramTag, RequestStats, SamplingParams
from ramet.runtime.server.tracing import AnswerStart, NoTracing, Tracing


def test_nothing_is_traced() -> None:
    tracing: Tracing = NoTracing()
    with tracing.request("GET", {"traceparent": "x"}) as span:
        assert span.trace_id == ""
        answer = tracing.answer(AnswerStart("chat", SamplingParams(), ProgramTag(), 1))
        answer.started("id")
        answer.first_token(0.1)
        answer.finished(FinishReason.STOP, RequestStats())
        answer.scored()
        answer.failed(ValueError())
        answer.end()
        span.answered("/", 200)
    program = tracing.program("prog_1", "name")
    with program.inside():
        pass
    program.end("completed")
    tracing.close()
    tracing.close()
