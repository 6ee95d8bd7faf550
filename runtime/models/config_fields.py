"""Typed access to the fields of a published config, with errors that name field, value and what is expected."""

import math
from collections.abc import Mapping

from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError


class ConfigFields:
    """One mapping of fields (config.json, a nested part of it, or GGUF metadata).

    A field that is absent or null counts as not given. Without a default the getters raise ModelLoadError for
    it.
    """

    def __init__(self, fields: Mapping[str, object], *, source: str) -> None:
        """source: how error messages call the mapping, such as "config.json of LlamaForCausalLM"."""
        self._fields = fields
        self.source = source

    def get(self, name: str) -> object:
        return self._fields.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A count or size, at least 1."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected a whole number above 0")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.integer(name)

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected a number above 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self._fields.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected a string")
        return value

    def token_id(self, name: str) -> int | None:
        ids = self.token_ids(name)
        return ids[0] if ids else None

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; () where absent."""
        value = self._fields.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list | tuple) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected token ids")
        return tuple(dict.fromkeys(ids))

    def part(self, name: str) -> "ConfigFields | None":
        """A nested mapping, or None where absent."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelLoadError(f"{self.source}: {name} is {value!r}; expected a mapping")
        return ConfigFields(value, source=f"{self.source}, {name}")

    def mentions(self, name: str) -> bool:
        """The field is there, be it null."""
        return name in self._fields

    def given(self) -> frozenset[str]:
        """Names of the fields that have a value."""
        return frozenset(name for name, value in self._fields.items() if value is not None)

    def refuse_unless(self, name: str, neutral: tuple[object, ...], feature: str) -> None:
        """Raise UnsupportedModelError where the field is given with a value that is not in ``neutral``."""
        value = self._fields.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(f"{self.source}: {name}={_short(value)} ({feature}) is not implemented")

    def _value(self, name: str, default: object) -> object:
        value = self._fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise ModelLoadError(f"{self.source}: the field {name} is missing")
        return default


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
