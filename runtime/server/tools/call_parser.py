"""ToolCallParser: an answer's text, however it is cut, to content and tool calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ramet.runtime.server.tools.call_scanner import CallScanner, Progress
from ramet.runtime.server.tools.formats import ToolFormat

_SPACE = " \t\r\n"
_BETWEEN_CALLS = "[],;" + _SPACE


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str
    """Goes on with the JSON text of the latest call's arguments."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The latest call is whole."""


ParserEvent = Content | CallBegin | CallArguments | CallEnd


class _Place(Enum):
    START = auto()
    TEXT = auto()
    PLAIN = auto()
    """Nothing that follows is a call."""
    BETWEEN = auto()
    CALL = auto()
    NAME = auto()
    """Before the arguments of a call whose name stands outside of them."""
    AFTER = auto()


class ToolCallParser:
    """Feed it the text as it comes; it gives back what is certain.

    What looks like a call and turns out to be none (no JSON, no known tool) is content, as it stood. White
    space around calls belongs to nothing. How the text is cut makes no difference to what comes out, but for
    where content and arguments are cut.
    """

    def __init__(
        self,
        format: ToolFormat,
        tool_names: frozenset[str],
        *,
        forced: bool = False,
        begins_inside: bool = False,
        named: str | None = None,
    ) -> None:
        """``forced``: a grammar lets nothing but calls through; what is cut before it is a call belongs to
        nothing. ``begins_inside``: the prompt ended with the format's ``begin``. ``named``: and with a tool's
        name, so that the text begins with its arguments.
        """
        self._forced = forced
        self._format = format
        self._tool_names = tool_names
        self._place = _Place.BETWEEN if begins_inside else _Place.START
        self._held = ""
        """Read, and not yet known to be content or not."""
        self._scanner = CallScanner(tool_names)
        self._begun = False
        self._had_call = False
        if named is not None:
            self._open_named(named)

    def feed(self, text: str) -> list[ParserEvent]:
        return _merged(event for character in text for event in self._push(character))

    def finish(self) -> list[ParserEvent]:
        """What was held back. A call that has begun and did not end stays without its CallEnd."""
        held, self._held = self._held, ""
        is_open_call = self._place is _Place.CALL and self._begun
        if self._forced or is_open_call or (self._had_call and not held.strip(_BETWEEN_CALLS)):
            return []
        return [Content(held)] if held else []

    def _push(self, character: str) -> Iterator[ParserEvent]:
        match self._place:
            case _Place.PLAIN:
                yield Content(character)
            case _Place.START:
                yield from self._at_start(character)
            case _Place.TEXT:
                yield from self._in_text(character)
            case _Place.BETWEEN:
                yield from self._between(character)
            case _Place.NAME:
                yield from self._in_name(character)
            case _Place.CALL:
                yield from self._in_call(character)
            case _Place.AFTER:
                yield from self._after(character)

    def _at_start(self, character: str) -> Iterator[ParserEvent]:
        if self._format.begin:
            self._place = _Place.TEXT
            yield from self._in_text(character)
        elif character in _SPACE:
            self._held += character
        elif character in "{[":
            self._place = _Place.BETWEEN
            yield from self._between(character)
        else:
            yield from self._give_up(character)

    def _in_text(self, character: str) -> Iterator[ParserEvent]:
        """Looks for the marker; holds back what may be its beginning, and white space before it."""
        begin = self._format.begin
        self._held += character
        text = self._held.lstrip(_SPACE)
        if text.endswith(begin):
            # White space before the marker belongs to nothing; the rest was given back already.
            self._place = _Place.BETWEEN
            return
        kept = _kept_back(self._held, begin)
        given = len(self._held) - kept
        if given:
            yield Content(self._held[:given])
            self._held = self._held[given:]

    def _between(self, character: str) -> Iterator[ParserEvent]:
        """Before a call."""
        self._held += character
        if character == "{" and not self._format.named_before:
            self._place = _Place.CALL
            self._scanner, self._begun = CallScanner(self._tool_names), False
            self._scanner.push(character)
        elif character == "]" and self._format.begin and self._had_call:
            # The list's end; another one needs a marker of its own.
            self._held, self._place = "", _Place.TEXT
        elif character in _BETWEEN_CALLS and not self._format.named_before:
            return
        elif self._format.named_before:
            self._place = _Place.NAME
        else:
            yield from self._broken()

    def _in_name(self, character: str) -> Iterator[ParserEvent]:
        self._held += character
        name, separator, _ = self._held.partition(self._format.named_before)
        if not separator:
            return
        name = name.strip(_SPACE).removeprefix(self._format.begin).strip(_SPACE)
        # Some tokenizers write the call's id behind its name.
        name = name.partition("[CALL_ID]")[0]
        if name not in self._tool_names:
            yield from self._broken()
            return
        self._open_named(name)

    def _open_named(self, name: str) -> None:
        self._place = _Place.CALL
        self._scanner, self._begun = CallScanner(self._tool_names, name=name), False
        for part in '{"arguments":':
            self._scanner.push(part)

    def _in_call(self, character: str) -> Iterator[ParserEvent]:
        scanner = self._scanner
        progress = scanner.push(character)
        if progress is Progress.BROKEN:
            if self._begun:
                self._leave_call()
                yield from self._push(character)
            else:
                self._held += character
                yield from self._broken()
            return
        if not self._begun:
            self._held += character
        if scanner.is_certain:
            if not self._begun:
                self._begun, self._had_call, self._held = True, True, ""
                assert scanner.name is not None
                yield CallBegin(scanner.name)
            if arguments := scanner.take_arguments():
                yield CallArguments(arguments)
        named_is_read = bool(self._format.named_before) and scanner.value_is_read
        if progress is Progress.DONE or named_is_read:
            yield CallEnd()
            self._leave_call()

    def _leave_call(self) -> None:
        self._held = ""
        self._place = _Place.AFTER if self._format.end else _Place.BETWEEN
        if self._format.named_before:
            self._place = _Place.TEXT

    def _after(self, character: str) -> Iterator[ParserEvent]:
        """Between a call and its end marker; what stands there instead of one is content."""
        self._held += character
        text = self._held.lstrip(_SPACE)
        if text == self._format.end:
            self._held, self._place = "", _Place.TEXT
        elif not self._format.end.startswith(text):
            held, self._held, self._place = self._held, "", _Place.TEXT
            for one in held:
                yield from self._in_text(one)

    def _broken(self) -> Iterator[ParserEvent]:
        """What is held is no call. With a marker, calls may still follow; without, nothing is one any more."""
        if not self._format.begin:
            yield from self._give_up("")
            return
        held, self._held, self._place = self._held, "", _Place.TEXT
        # The first character is content for certain: it began what turned out to be no call.
        head = len(held) - len(held.lstrip(_SPACE)) + 1
        yield Content(held[:head])
        for one in held[head:]:
            yield from self._push(one)

    def _give_up(self, character: str) -> Iterator[ParserEvent]:
        held, self._held, self._place = self._held, "", _Place.PLAIN
        yield Content(held + character)


def _kept_back(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may belong to the marker or to white space before it."""
    for size in range(min(len(text), len(marker) - 1), -1, -1):
        if text.endswith(marker[:size]):
            before = text[: len(text) - size]
            return size + len(before) - len(before.rstrip(_SPACE))
    return 0


def _merged(events: Iterator[ParserEvent]) -> list[ParserEvent]:
    """Neighbours of a kind put together."""
    merged: list[ParserEvent] = []
    for event in events:
        match (merged[-1] if merged else None, event):
            case (Content(before), Content(text)):
                merged[-1] = Content(before + text)
            case (CallArguments(before), CallArguments(text)):
                merged[-1] = CallArguments(before + text)
            case _:
                merged.append(event)
    return merged
