"""Opening the engine: errors pass through, nothing is drawn without a terminal."""

import pytest

from ramet.runtime.cli import options
from ramet.runtime.protocol import InvalidRequestError


def test_errors_of_the_engine_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequestError, match="kv_tokens is -1"):
        options.open_engine(model="smollm2", kv_tokens=-1)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
