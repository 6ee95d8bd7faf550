"""Routes of others are told from ours and from nobody's."""

import pytest

from ramet.runtime.server.elsewhere import is_elsewhere, reason, served


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/files", "no file is kept"),
        ("/v1/files/file-1/content", "no file is kept"),
        ("/v1/audio/speech", "text alone"),
        ("/v1/messages/batches/", "they queue"),
        ("/v1/chat/completions/chatcmpl-1", "are not kept"),
        ("/v1/models/x", "over HTTP"),
    ],
)
def test_a_reason(path: str, says: str) -> None:
    assert says in (reason(path) or "")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/filesystem", "/v2/files", "/files", "/v1/messages"])
def test_none(path: str) -> None:
    assert reason(path) is None
    assert not is_elsewhere(path)


def test_ours_have_other_methods() -> None:
    assert is_elsewhere("/v1/rerank/")
    assert not is_elsewhere("/v1/models/x")


def test_served() -> None:
    said = served(["/v1/b", "/v1/a", "/v1/a", "/v1/a/{id}", "/health"])
    assert said == "served are /v1/a, /v1/b; GET /openapi.json describes all"
