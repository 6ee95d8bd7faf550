"""Placeholders: what a traced program gets instead of values that are not known yet.

They can be put into text, where a mark stands for the value. Whoever looks at the value itself ends the trace:
what the program does then depends on it.
"""

import re
from collections.abc import Callable, Hashable
from typing import Any

from ramet.lang.ir import Node
from ramet.runtime.tokenizer.private_text import number_of, numbered_character, private_text


class TraceEnd(BaseException):
    """The program cannot be followed further. No Exception, so that no program takes it for one of its own."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Marks:
    """What stands in texts for things that are not known yet."""

    def __init__(self) -> None:
        self._nonce = private_text()
        self._things: list[object] = []
        self._known: dict[Hashable, str] = {}

    def text(self, thing: object, description: str) -> str:
        """A text to be used in the value's place."""
        return UnknownText(self._mark(thing), description)

    def value(self, thing: object, description: str) -> object:
        """As ``text``, for values that are no text."""
        return UnknownValue(self._mark(thing), description)

    def of(self, thing: Hashable) -> str:
        """The mark itself, the same for equal things."""
        if thing not in self._known:
            self._known[thing] = self._mark(thing)
        return self._known[thing]

    def split(self, text: str) -> list[object]:
        """The text's parts in order: texts (none is empty), and things."""
        parts: list[object] = []
        for index, part in enumerate(re.split(f"{self._nonce}(.)", text, flags=re.DOTALL)):
            if index % 2:
                parts.append(self._things[number_of(part)])
            elif part:
                parts.append(part)
        return parts

    def _mark(self, thing: object) -> str:
        if len(self._things) >= 65_000:
            raise TraceEnd("the program reads more values than a trace follows")
        self._things.append(thing)
        return self._nonce + numbered_character(len(self._things) - 1)


class UnknownText(str):
    """A text that is not known. Cutting white space, case and the like leave it as it is."""

    description: str

    def __new__(cls, mark: str, description: str) -> "UnknownText":
        self = super().__new__(cls, mark)
        self.description = description
        return self

    def __repr__(self) -> str:
        return "'" + str.__str__(self) + "'"

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Node):
            return NotImplemented
        return UnknownText(str.__add__(self, other), self.description)

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, str):
            return UnknownText(str.__add__(other, self), self.description)
        return NotImplemented


class UnknownValue:
    """A value that is not known. Its attributes and items are not known either."""

    def __init__(self, mark: str, description: str) -> None:
        self._mark = mark
        self._description = description

    def __str__(self) -> str:
        return self._mark

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return self._mark

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return UnknownValue(self._mark, self._description)

    def __getitem__(self, key: object) -> Any:
        return UnknownValue(self._mark, self._description)


def describe(value: UnknownText | UnknownValue) -> str:
    return value.description if isinstance(value, UnknownText) else value._description


def _ending(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        raise TraceEnd(f"what it does next depends on {describe(self)}")

    method.__name__ = name
    return method


def _keeping(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: object, **kwargs: object) -> Any:
        return self

    method.__name__ = name
    return method


_LOOKS = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__"),
    *("__len__", "__iter__", "__contains__", "__reversed__"),
)
_NUMBERS = (
    *("__int__", "__float__", "__index__", "__call__", "__abs__", "__neg__", "__round__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__", "__rpow__"),
)
_KEPT = (
    *("strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "casefold", "swapcase"),
    *("removeprefix", "removesuffix", "expandtabs", "ljust", "rjust", "center"),
)

for _name in _KEPT:
    setattr(UnknownText, _name, _keeping(_name))
for _name in dir(str):
    if _name in (*_LOOKS, "__getitem__") or not (_name.startswith("__") or _name in _KEPT):
        setattr(UnknownText, _name, _ending(_name))
UnknownText.__bool__ = _ending("__bool__")  # type: ignore[attr-defined]
for _name in (*_LOOKS, *_NUMBERS):
    setattr(UnknownValue, _name, _ending(_name))
