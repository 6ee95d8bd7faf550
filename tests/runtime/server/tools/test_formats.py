"""The format is seen in the chat template."""

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.server.tools.formats import (
    HERMES,
    JSON,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    ToolFormat,
    tool_format,
)
from tests.runtime.server.speaking_server import spec


@pytest.mark.parametrize(
    ("template", "format"),
    [
        (None, JSON),
        ("{{ messages }}", JSON),
        ("... <tool_call></tool_call> ...", HERMES),
        ("... [TOOL_CALLS] ...", MISTRAL),
        ("... [TOOL_CALLS] ... [ARGS]", MISTRAL_NAMED),
        ('Environment: ipython ... {"name": name, "parameters": ...}', LLAMA3),
    ],
)
def test_which(template: str | None, format: ToolFormat) -> None:
    assert tool_format("auto", spec(template)) == format


def test_by_name() -> None:
    assert tool_format("llama3", spec()) == LLAMA3
    with pytest.raises(InvalidRequestError, match="tool_format is 'x'"):
        tool_format("x", spec())
