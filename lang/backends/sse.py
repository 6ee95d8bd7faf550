"""Server-sent events from bytes that arrive in any pieces."""

import codecs
from dataclasses import dataclass

from ramet.lang.errors import GenerationError

MAX_EVENT_CHARS = 64 << 20


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """``event``: its type, "message" where the server names none. ``data``: its lines joined by newlines."""

    data: str
    event: str = "message"


class EventParser:
    """The event stream format of the HTML standard (section 9.2.6), without ``id`` and ``retry``, which are for
    reconnecting. How the bytes are cut into pieces makes no difference."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._line: list[str] = []
        self._num_chars = 0
        self._after_return = False
        """A line has ended with a carriage return: a newline that follows belongs to it."""
        self._event = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that end within ``data``. An event without its empty line at the end is none.

        Raises:
            GenerationError: an event is longer than MAX_EVENT_CHARS.
        """
        text = self._decoder.decode(data)
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        if text.endswith("\r"):
            self._after_return = True
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events: list[ServerSentEvent] = []
        for line in lines:
            self._line.append(line)
            whole = "".join(self._line)
            self._line.clear()
            if whole:
                self._field(whole)
            elif event := self._dispatch():
                events.append(event)
        if rest:
            self._line.append(rest)
            self._grow(len(rest))
        return events

    def _field(self, line: str) -> None:
        self._grow(len(line))
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value

    def _grow(self, num_chars: int) -> None:
        self._num_chars += num_chars
        if self._num_chars > MAX_EVENT_CHARS:
            raise GenerationError(f"the server sent an event of more than {MAX_EVENT_CHARS} characters")

    def _dispatch(self) -> ServerSentEvent | None:
        event = ServerSentEvent("\n".join(self._data), self._event or "message") if self._data else None
        self._event, self._num_chars = "", 0
        self._data.clear()
        return event
