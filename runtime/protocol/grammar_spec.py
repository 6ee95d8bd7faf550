"""What a caller asks the output to conform to: six frozen kinds, one union.

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


class Prefix(msgspec.Struct, frozen=True, tag="prefix"):
    """The output first spells ``text``, in any tokenisation, and then ``inner`` (None: anything).

    For token healing: a prompt gives up its last tokens, and ``text`` is what they spelled. A token may spell
    the end of ``text`` and go on behind it. ``text`` was the prompt's, so the output's text (and the search for
    stops in it) begins behind it; the output's token ids include the tokens that spell it.
    """

    text: str
    inner: JsonSchema | Regex | Ebnf | Choice | StructuralTag | None = None

    def __post_init__(self) -> None:
        if not self.text:
            raise InvalidRequestError(
                "prefix has an empty text, which requires nothing; give the text, or the inner grammar alone",
                field="grammar",
            )


GrammarSpec = JsonSchema | Regex | Ebnf | Choice | StructuralTag | Prefix
