"""What a caller asks the output to conform to: five frozen kinds, one union.

A spec is data only. Its canonical form (the fields as they stand) is the key of the compile cache.
"""

import json
from typing import Any

import msgspec

from ramet.runtime.protocol.errors import InvalidRequestError


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """A JSON Schema document as text, with its keys in the order they were declared."""

    schema: str

    @classmethod
    def of(cls, schema: dict[str, Any] | bool) -> "JsonSchema":
        return cls(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """A regular expression that the whole output must match."""

    pattern: str


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """A context-free grammar, GBNF or Lark."""

    grammar: str


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """The output is exactly one of ``options``."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise InvalidRequestError("choice has no options; give at least one string", field="grammar")
        if any(option == "" for option in self.options):
            raise InvalidRequestError(
                "choice has an empty option, which no token can spell; remove it", field="grammar"
            )


class StructuralTag(msgspec.Struct, frozen=True, tag="structural_tag"):
    """Free text with constrained regions after triggers, as a JSON document."""

    spec: str


GrammarSpec = JsonSchema | Regex | Ebnf | Choice | StructuralTag
