"""What a caller asks the output to conform to: six frozen kinds, one union.

A spec is data only. Its canonical form (the fields as they stand) is the key of the compile cache.
"""

import json
import reprlib
from typing import Any

import msgspec

from ramet.runtime.protocol.errors import InvalidRequestError


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """A JSON Schema document as text, with its keys in the order they were declared."""

    schema: str

    def __post_init__(self) -> None:
        _check_text("schema", self.schema, "the schema's JSON text; JsonSchema.of takes a dict")

    @classmethod
    def of(cls, schema: dict[str, Any] | bool) -> "JsonSchema":
        return cls(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """A regular expression that the whole output must match."""

    pattern: str

    def __post_init__(self) -> None:
        _check_text("pattern", self.pattern, "a regular expression's text")


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """A context-free grammar, GBNF or Lark."""

    grammar: str

    def __post_init__(self) -> None:
        _check_text("grammar", self.grammar, "the grammar's text")


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """The output is exactly one of ``options``. A list is taken for a tuple."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        options: object = self.options
        if isinstance(options, list):
            msgspec.structs.force_setattr(self, "options", tuple(options))
        elif not isinstance(options, tuple):
            raise InvalidRequestError(
                f"options is {reprlib.repr(options)}; it must be a tuple or list of strings",
                field="grammar",
            )
        for index, option in enumerate(self.options):
            _check_text(f"options[{index}]", option, "a string")
        if not self.options:
            raise InvalidRequestError("choice has no options; give at least one string", field="grammar")
        if any(option == "" for option in self.options):
            raise InvalidRequestError(
                "choice has an empty option, which no token can spell; remove it", field="grammar"
            )


class StructuralTag(msgspec.Struct, frozen=True, tag="structural_tag"):
    """Free text with constrained regions after triggers, as a JSON document."""

    spec: str

    def __post_init__(self) -> None:
        _check_text("spec", self.spec, "the JSON document's text")


class Prefix(msgspec.Struct, frozen=True, tag="prefix"):
    """The output first spells ``text``, in any tokenisation, and then ``inner`` (None: anything).

    For token healing: a prompt gives up its last tokens, and ``text`` is what they spelled. A token may spell
    the end of ``text`` and go on behind it. ``text`` was the prompt's, so the output's text (and the search for
    stops in it) begins behind it; the output's token ids include the tokens that spell it.
    """

    text: str
    inner: JsonSchema | Regex | Ebnf | Choice | StructuralTag | None = None

    def __post_init__(self) -> None:
        _check_text("text", self.text, "a string")
        if self.inner is not None and not isinstance(
            self.inner, JsonSchema | Regex | Ebnf | Choice | StructuralTag
        ):
            raise InvalidRequestError(
                f"inner is {reprlib.repr(self.inner)}; it must be a JsonSchema, Regex, Ebnf, Choice or "
                "StructuralTag, or None",
                field="grammar",
            )
        if not self.text:
            raise InvalidRequestError(
                "prefix has an empty text, which requires nothing; give the text, or the inner grammar alone",
                field="grammar",
            )


GrammarSpec = JsonSchema | Regex | Ebnf | Choice | StructuralTag | Prefix


def _check_text(name: str, value: object, expected: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} is {reprlib.repr(value)}; it must be {expected}", field="grammar")
