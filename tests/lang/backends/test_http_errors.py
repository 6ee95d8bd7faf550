import json

import pytest

from ramet.lang.backends.http_errors import MAX_SHOWN, answered_error, error_fields


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": {"message": "bad", "param": "top_k", "code": None}}, "bad (field 'top_k')"),
        ({"error": {"message": "bad", "code": "model_not_found"}}, "bad (code 'model_not_found')"),
        ({"object": "error", "message": "bad", "param": "n", "code": 400}, "bad (field 'n')"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "Overloaded"),
        ({"detail": [{"loc": ["body"], "msg": "missing"}]}, '[{"loc":["body"],"msg":"missing"}]'),
        ({"error": "bad"}, "bad"),
        ("<html>down</html>", "<html>down</html>"),
        ("", "it says nothing of why"),
    ],
)
def test_bodies(body: object, expected: str) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert str(answered_error("the server", 400, text)) == f"the server answered with status 400: {expected}"


def test_remedies() -> None:
    assert str(answered_error("s", 401, b"no")).endswith("check api_key")
    assert str(answered_error("s", 404, b"no")).endswith("check model and base_url")
    assert str(answered_error("s", None, b"no")) == "s failed while it answered: no"


def test_a_long_body_is_cut() -> None:
    assert len(str(answered_error("s", 500, b"x" * 10_000))) < MAX_SHOWN + 100


def test_fields() -> None:
    assert error_fields(b'{"error": {"message": "m", "code": "c"}}')["code"] == "c"
    assert error_fields(b"\xff") == {"message": "\ufffd"}
