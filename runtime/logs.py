"""How a process of ramet writes its log: a line for people, or a JSON object for machines."""

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

FIELDS = "fields"
"""What a record carries besides its message, in logging's ``extra``: a dict of JSON values."""


class JsonFormatter(logging.Formatter):
    """One object a line: time (RFC 3339, UTC), level, logger, process, pid, message, the record's fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": os.getpid(),
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            told["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(told, ensure_ascii=False, default=str)


def configure_logging(process: str, level: str, format: str) -> None:
    """Of this process, to stderr. ``level`` and ``format`` are those of ``env.Environment``."""
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonFormatter(process))
    else:
        line = f"%(asctime)s {process}[%(process)d] %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(line))
    logging.basicConfig(level=level.upper(), handlers=[handler])
