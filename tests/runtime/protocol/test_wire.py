import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol import (
    Choice,
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    Logprob,
    ModelLoadError,
    ProgramTag,
    PromptTooLongError,
    RametError,
    RequestAbortedError,
    RequestFailedError,
    RequestStats,
    SamplingParams,
    TokenLogprobs,
    UnsupportedConstraintError,
)
from ramet.runtime.protocol.wire import (
    ChatOptions,
    ErrorBody,
    ErrorDetail,
    GenerateEvent,
    GenerateRequest,
    Input,
    as_error,
    decode_event,
    encode_event,
    error_detail,
    finite_logprobs,
    from_finite,
    http_status,
    to_finite,
)

LOGPROBS = st.floats(-1e4, 0.0) | st.just(-math.inf)
TOKENS = st.builds(Logprob, st.integers(0, 50_000), LOGPROBS, st.integers(0, 50_000))
POSITIONS = st.builds(TokenLogprobs, TOKENS, st.lists(TOKENS, max_size=3).map(tuple))
EVENTS = st.builds(
    GenerateEvent,
    index=st.integers(0, 3),
    text=st.text(),
    token_ids=st.lists(st.integers(0, 50_000)),
    logprobs=st.none() | st.lists(POSITIONS, max_size=3),
    prompt_logprobs=st.none() | st.lists(st.none() | POSITIONS, max_size=3),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_reason=st.none() | st.integers(0, 9) | st.text(max_size=3),
    stats=st.none() | st.builds(RequestStats, num_prompt_tokens=st.integers(0, 9)),
    request_id=st.text(max_size=5),
    error=st.none() | st.builds(ErrorDetail, message=st.text()),
)


@given(EVENTS)
def test_an_event_comes_back_as_it_was_and_is_one_line(event: GenerateEvent) -> None:
    written = encode_event(event)
    assert b"\n" not in written
    assert decode_event(written) == event


def test_a_request_comes_back_as_it_was() -> None:
    request = GenerateRequest(
        input=Input(
            messages=[{"role": "user", "content": "hi"}], chat=ChatOptions(tools=[{"type": "function"}])
        ),
        params=SamplingParams(stop=("a",), logit_bias={3: 1.5}, grammar=Choice(("yes", "no"))),
        stream=True,
        tag=ProgramTag(program_id="p", branch="0/1", remaining_calls=2),
        priority=2,
        cache_salt="tenant",
    )
    assert msgspec.json.decode(msgspec.json.encode(request), type=GenerateRequest) == request


@pytest.mark.parametrize("fields", [{}, {"text": "a", "token_ids": [1]}])
def test_an_input_has_one_form(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="one of text, token_ids and messages"):
        Input(**fields)  # type: ignore[arg-type]


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.json.decode(b'{"input":{"text":"a"},"params":{"temprature":1}}', type=GenerateRequest)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequestError("m", field="top_p"), 400, "invalid_request_error"),
        (PromptTooLongError("m", field="prompts"), 400, "invalid_request_error"),
        (UnsupportedConstraintError("m", field="grammar"), 400, "invalid_request_error"),
        (RequestAbortedError("m"), 499, "server_error"),
        (RequestFailedError("m"), 500, "server_error"),
        (EngineDeadError("m"), 503, "server_error"),
    ],
)
def test_an_error_comes_back_as_it_was_raised(error: RametError, status: int, kind: str) -> None:
    detail = error_detail(error)
    body = msgspec.json.decode(msgspec.json.encode(ErrorBody(error=detail)), type=ErrorBody)
    again = as_error(body.error)
    assert (http_status(error), detail.type) == (status, kind)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "field", None) == getattr(error, "field", None)


def test_other_errors_are_the_servers() -> None:
    detail = error_detail(ModelLoadError("m"))
    assert (detail.code, http_status(ModelLoadError("m"))) == ("server_error", 500)
    assert type(as_error(ErrorDetail(message="m", code="new_kind"))) is RequestFailedError


def test_what_cannot_be_said_is_written_as_a_number() -> None:
    assert from_finite(to_finite(-math.inf)) == -math.inf
    assert from_finite(to_finite(-3.4e38)) == -3.4e38
    position = TokenLogprobs(Logprob(1, -math.inf, 5))
    assert finite_logprobs(None) is None
    assert b"null" not in msgspec.json.encode(finite_logprobs([position]))
