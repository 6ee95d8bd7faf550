"""ResponseStore: responses that clients asked to keep, in a SQLite file."""

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from ramet.runtime.protocol import InvalidRequestError, RequestFailedError

KEPT_SECONDS = 30 * 86400
"""As OpenAI's."""
MAX_BYTES = 1 << 30
"""Of all responses; beyond it the oldest are dropped."""

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, size INTEGER NOT NULL,
    num_input INTEGER NOT NULL, items BLOB NOT NULL, response BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
)
"""


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and the conversation that it ends."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    """Of the input, what came before it included, and of the output."""
    num_input: int
    """Of ``items`` those of the input."""

    @property
    def input_items(self) -> list[dict[str, Any]]:
        return self.items[: self.num_input]


class ResponseStore:
    """Each tenant sees its own. Thread-safe; a call takes well under a millisecond, as the file is not synced.

    Invariant: ``_num_bytes`` is the sum of all sizes in the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> None:
        """Raises InvalidRequestError where the file cannot be opened, or is no database."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        try:
            # Conversations are nobody else's to read.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(Path(path), check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(_TABLE)
            self._num_bytes = self._measured()
        except (OSError, sqlite3.Error) as error:
            raise InvalidRequestError(
                f"response_store {os.fspath(path)!r} cannot be opened: {error}", field="response_store"
            ) from None

    def save(self, tenant: str, stored: StoredResponse) -> None:
        """Under the response's own id; one of the same id is replaced.

        Raises:
            RequestFailedError: it cannot be written.
        """
        items, response = msgspec.json.encode(stored.items), msgspec.json.encode(stored.response)
        size = len(items) + len(response)
        row = (tenant, stored.response["id"], time.time(), size, stored.num_input, items, response)
        try:
            with self._lock, self._database as database:
                self._forget(database, "tenant = ? AND id = ?", row[:2])
                self._forget(database, "created < ?", (time.time() - KEPT_SECONDS,))
                database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                self._num_bytes += size
                oldest = "rowid = (SELECT rowid FROM responses ORDER BY created LIMIT 1)"
                while self._num_bytes > self._max_bytes and self._forget(database, oldest, ()):
                    pass
        except sqlite3.Error as error:
            # What was deleted for it is back.
            with self._lock, contextlib.suppress(sqlite3.Error):
                self._num_bytes = self._measured()
            raise RequestFailedError(f"the response could not be stored: {error}") from error

    def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """None: there is none of this tenant's."""
        with self._lock:
            row = self._database.execute(
                "SELECT response, items, num_input FROM responses WHERE tenant = ? AND id = ?",
                (tenant, response_id),
            ).fetchone()
        if row is None:
            return None
        return StoredResponse(msgspec.json.decode(row[0]), msgspec.json.decode(row[1]), row[2])

    def delete(self, tenant: str, response_id: str) -> bool:
        """Whether there was one. Responses that follow it keep what they have of it."""
        with self._lock, self._database as database:
            return self._forget(database, "tenant = ? AND id = ?", (tenant, response_id)) > 0

    def close(self) -> None:
        """Closing twice is allowed."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._database.close()

    def _measured(self) -> int:
        (size,) = self._database.execute("SELECT coalesce(sum(size), 0) FROM responses").fetchone()
        return int(size)

    def _forget(self, database: sqlite3.Connection, which: str, values: tuple[object, ...]) -> int:
        """Deletes rows; ``which`` is a condition of this module's own."""
        rows = database.execute(f"DELETE FROM responses WHERE {which} RETURNING size", values).fetchall()
        self._num_bytes -= sum(size for (size,) in rows)
        return len(rows)
