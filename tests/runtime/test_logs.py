"""Log lines that machines read."""

import json
import logging
import subprocess
import sys
from datetime import datetime

from ramet.runtime.logs import JsonFormatter


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("ramet.x", logging.WARNING, "x.py", 1, message, values, None)
    made.__dict__.update(extra)
    return made


def test_a_record_is_one_object_on_one_line() -> None:
    line = JsonFormatter("server").format(record("two\nlines of %s", "ünïcode", fields={"status": 200}))
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == "two\nlines of ünïcode"
    assert (told["level"], told["logger"], told["process"], told["status"]) == (
        "warning",
        "ramet.x",
        "server",
        200,
    )
    assert datetime.fromisoformat(told["time"]).utcoffset() is not None


def test_exceptions_and_odd_values_are_told() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        made = record("failed", fields={"odd": object})
        made.exc_info = sys.exc_info()
    told = json.loads(JsonFormatter("engine").format(made))
    assert "ValueError: no" in told["exception"]
    assert "object" in told["odd"]


def test_a_process_is_configured() -> None:
    program = (
        "import logging; from ramet.runtime.logs import configure_logging;"
        "configure_logging('server', 'info', {!r});"
        "logging.getLogger('a').info('hello'); logging.getLogger('a').debug('nothing')"
    )
    for format in ("json", "text"):
        ran = subprocess.run(
            [sys.executable, "-c", program.format(format)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        (line,) = ran.stderr.splitlines()
        if format == "json":
            assert json.loads(line)["message"] == "hello"
        else:
            assert line.endswith("INFO a: hello")
            assert " server[" in line
