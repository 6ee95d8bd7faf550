"""Errors as clients read them."""

import json

import pytest

from ramet.runtime.protocol import (
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    RametError,
    RequestAbortedError,
    RequestFailedError,
    UnsupportedConstraintError,
)
from ramet.runtime.server.errors import (
    HttpError,
    bad_request,
    cut_by_shutdown,
    deadline_exceeded,
    error_body,
    error_response,
    openai_error,
    overloaded,
    too_many_programs,
    unauthorized,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequestError("x", field="n"), 400, "invalid_request_error", "invalid_value"),
        (PromptTooLongError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (UnsupportedConstraintError("x"), 400, "invalid_request_error", "unsupported_constraint"),
        (RequestAbortedError("x"), 499, "server_error", "request_aborted"),
        (RequestFailedError("x"), 500, "server_error", "request_failed"),
        (EngineDeadError("x"), 503, "server_error", "engine_dead"),
    ],
)
def test_each_kind_has_its_status_and_code(error: RametError, status: int, kind: str, code: str) -> None:
    told = openai_error(error)
    assert (told.status, told.detail.type, told.detail.code) == (status, kind, code)


def test_a_parameter_is_called_what_the_client_called_it() -> None:
    error = InvalidRequestError("max_tokens is 0; it must be at least 1", field="max_tokens")
    told = openai_error(error, {"max_tokens": "max_completion_tokens"})
    assert told.detail.param == "max_completion_tokens"
    assert told.detail.message == "max_completion_tokens is 0; it must be at least 1"


def test_a_message_is_bounded_and_always_text() -> None:
    body = error_body(bad_request("x\ud800" * 5000, param="p\ud800"))
    error = json.loads(body)["error"]
    assert len(error["message"]) <= 1000
    assert error["param"] == "p?"


def test_answers_that_say_when_to_come_back() -> None:
    response = error_response(overloaded(7), "/v1/completions")
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert [error.status for error in (deadline_exceeded(1.5), cut_by_shutdown())] == [504, 503]
    assert isinstance(overloaded(1), HttpError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (bad_request("x", status=400), "invalid_request_error"),
        (unauthorized(), "authentication_error"),
        (bad_request("x", status=405), "invalid_request_error"),
        (bad_request("x", status=408), "invalid_request_error"),
        (bad_request("x", status=413), "request_too_large"),
        (bad_request("x", status=415), "invalid_request_error"),
        (too_many_programs(3, 1), "rate_limit_error"),
        (cut_by_shutdown(), "overloaded_error"),
        (deadline_exceeded(1), "timeout_error"),
    ],
)
def test_what_is_asked_in_anthropics_form_is_refused_in_it(error: HttpError, kind: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = error_response(error, path)
        told = {"type": "error", "error": {"type": kind, "message": str(error)}}
        assert (response.status_code, json.loads(bytes(response.body))) == (error.status, told)
    assert "error" in json.loads(bytes(error_response(error, "/v1/messagesx").body))
    assert "type" not in json.loads(bytes(error_response(error, "/v1/completions").body))


def test_what_is_not_the_clients_mistake_is_no_fields() -> None:
    renamed = {"": "regex", "grammar": "regex"}
    assert openai_error(UnsupportedConstraintError("x"), renamed).detail.param == "regex"
    for error in (RequestAbortedError("x"), RequestFailedError("x"), EngineDeadError("x")):
        assert openai_error(error, renamed).detail.param is None
