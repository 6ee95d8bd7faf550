"""One tool call as a JSON object, read character by character."""

import json
from dataclasses import dataclass, field
from enum import Enum, auto

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")
_SPACE = " \t\r\n"
_NO_ARGUMENTS = "{}"


class Progress(Enum):
    MORE = auto()
    DONE = auto()
    """The character was the object's last."""
    BROKEN = auto()
    """The character cannot stand there; it was not taken."""


class _Place(Enum):
    START = auto()
    BEFORE_KEY = auto()
    KEY = auto()
    BEFORE_COLON = auto()
    BEFORE_VALUE = auto()
    VALUE = auto()
    AFTER_VALUE = auto()


@dataclass(slots=True)
class CallScanner:
    """Reads ``{"name": ..., "arguments": {...}}`` in any order of keys; other keys are passed over.

    A call is *certain* once its name is known to be a tool's and its arguments have begun, or the object has
    ended. From then on ``take_arguments`` hands out the arguments' JSON text as far as it was read. Brackets
    and strings are followed; what is between them is not checked.
    """

    tool_names: frozenset[str]
    name: str | None = None
    is_certain: bool = False
    _place: _Place = _Place.START
    _key: str = ""
    _raw: list[str] = field(default_factory=list)
    """The string, scalar or nested value that is being read."""
    _depth: int = 0
    """Brackets that are open inside of the value."""
    _in_string: bool = False
    _escaped: bool = False
    _after_comma: bool = False
    _arguments: str | None = None
    """Read and not yet handed out; None: none have begun."""

    def push(self, character: str) -> Progress:
        match self._place:
            case _Place.KEY | _Place.VALUE:
                return self._inside(character)
            case _ if character in _SPACE:
                return Progress.MORE
            case _Place.START:
                return self._expect(character, "{", _Place.BEFORE_KEY)
            case _Place.BEFORE_KEY if character == "}" and not self._after_comma:
                return self._end()
            case _Place.BEFORE_KEY:
                return self._begin_key(character)
            case _Place.BEFORE_COLON:
                return self._expect(character, ":", _Place.BEFORE_VALUE)
            case _Place.BEFORE_VALUE:
                return self._begin_value(character)
            case _:
                return self._after_value(character)

    @property
    def value_is_read(self) -> bool:
        """The latest value is whole."""
        return self._place is _Place.AFTER_VALUE

    def take_arguments(self) -> str:
        """What came of the arguments since the last time; only of a certain call."""
        assert self.is_certain
        taken, self._arguments = self._arguments or "", ""
        return taken

    def _expect(self, character: str, wanted: str, place: _Place) -> Progress:
        if character != wanted:
            return Progress.BROKEN
        self._place = place
        return Progress.MORE

    def _begin_key(self, character: str) -> Progress:
        self._raw = [character]
        self._in_string, self._escaped = True, False
        return self._expect(character, '"', _Place.KEY)

    def _begin_value(self, character: str) -> Progress:
        if character in ",:}]":
            return Progress.BROKEN
        self._place = _Place.VALUE
        self._raw = [character]
        self._in_string, self._escaped = character == '"', False
        self._depth = 1 if character in "{[" else 0
        if self._streams_arguments:
            self._arguments = character
            self._settle()
        return Progress.MORE

    def _inside(self, character: str) -> Progress:
        is_scalar = self._place is _Place.VALUE and self._depth == 0 and not self._in_string
        if is_scalar and (character in ",}" or character in _SPACE):
            return self._value_read() or self.push(character)
        self._raw.append(character)
        if self._place is _Place.VALUE and self._streams_arguments:
            self._arguments = (self._arguments or "") + character
        if self._in_string:
            self._follow_string(character)
        elif character == '"':
            if is_scalar:
                return Progress.BROKEN
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        if self._in_string or self._depth or is_scalar:
            return Progress.MORE
        if self._place is _Place.KEY:
            return self._key_read()
        return self._value_read() or Progress.MORE

    def _follow_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False

    @property
    def _streams_arguments(self) -> bool:
        return self._key in ARGUMENT_KEYS and bool(self._raw) and self._raw[0] == "{"

    def _key_read(self) -> Progress:
        key = _decoded("".join(self._raw))
        if not isinstance(key, str):
            return Progress.BROKEN
        self._key, self._raw, self._place = key, [], _Place.BEFORE_COLON
        return Progress.MORE

    def _value_read(self) -> Progress | None:
        """None: all is well."""
        raw = "".join(self._raw)
        self._place = _Place.AFTER_VALUE
        if self._key == NAME_KEY:
            name = _decoded(raw)
            if not isinstance(name, str) or self.name is not None:
                return Progress.BROKEN
            self.name = name
            self._settle()
        elif self._key in ARGUMENT_KEYS and not self._streams_arguments:
            value = _decoded(raw)
            # Some models write the arguments' JSON text as a string, or null where there are none.
            if value is not None and not isinstance(value, str):
                return Progress.BROKEN
            self._arguments = (value or "").strip() or _NO_ARGUMENTS
            self._settle()
        return None

    def _settle(self) -> None:
        self.is_certain = self.name in self.tool_names and self._arguments is not None

    def _after_value(self, character: str) -> Progress:
        if character == "}":
            return self._end()
        self._after_comma = True
        return self._expect(character, ",", _Place.BEFORE_KEY)

    def _end(self) -> Progress:
        if self.name not in self.tool_names:
            return Progress.BROKEN
        if self._arguments is None:
            self._arguments = _NO_ARGUMENTS
        self._settle()
        return Progress.DONE


def _decoded(raw: str) -> object:
    """The JSON value, or the type ``object`` itself where it is none."""
    try:
        return json.loads(raw)
    except ValueError:
        return object
