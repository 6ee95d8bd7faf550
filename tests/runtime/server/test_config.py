"""The server's settings: checked, and without secrets when shown."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.config import ServerConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -1),
        ("port", 70000),
        ("port", True),
        ("host", ""),
        ("max_queued_requests", -1),
        ("max_body_bytes", 10),
        ("max_json_depth", 5000),
        ("request_timeout", 0),
        ("request_timeout", float("nan")),
        ("drain_timeout", -1),
        ("keep_alive_timeout", 1.5),
        ("served_model_names", ("a", "")),
        ("api_keys", (" ",)),
    ],
)
def test_what_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ServerConfig(**{field: value})
    assert caught.value.field == field


def test_a_key_that_no_header_carries_is_refused_without_being_shown() -> None:
    for key in ("sec ret", "sécret", "sec\nret"):
        with pytest.raises(InvalidRequestError) as caught:
            ServerConfig(api_keys=(key,))
        assert key not in str(caught.value)


def test_keys_are_not_shown() -> None:
    shown = repr(ServerConfig(api_keys=("secret", "other")))
    assert "secret" not in shown
    assert "<2 hidden>" in shown
    assert "port=8000" in shown


def test_the_default_is_reached_from_this_machine_only() -> None:
    config = ServerConfig()
    assert config.host == "127.0.0.1"
    assert config.cors_origins == ()
