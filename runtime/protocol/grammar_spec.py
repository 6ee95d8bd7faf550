"""What a caller asks the output to conform to: six frozen kinds, one union.

A spec is data only. Its canonical form (the fields as they stand) is the key of the compile cache.
"""

import json
import reprlib
from typing import Any

import msgspec

from ramet.runtime.protocol.errors import InvalidRequestError

GRAMMAR_BACKENDS = ("auto", "llguidance", "xgrammar", "outlines")
"""Who enforces a constraint. ``auto``: the safest engine that enforces the whole of it. A name: that one,
or the request is refused."""
EBNF_SYNTAXES = ("auto", "gbnf", "lark")
MAX_WHITESPACE = 64
"""Highest bound on whitespace that a request may ask for."""


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """A JSON Schema document as text, with its keys in the order they were declared.

    ``true`` and ``{}`` stand for any JSON value.
    """

    schema: str
    backend: str = "auto"
    """One of GRAMMAR_BACKENDS."""
    max_whitespace: int = 8
    """Most whitespace characters between two tokens of the JSON text. 0: compact, none at all."""
    strict: bool = True
    """False: a schema of which no engine can enforce the whole is not refused. What can be enforced is, the
    finished answer is validated, and one that is not valid is drawn again, a bounded number of times."""

    def __post_init__(self) -> None:
        _check_text("schema", self.schema, "the schema's JSON text; JsonSchema.of takes a dict")
        _check_one_of("backend", self.backend, GRAMMAR_BACKENDS)
        _check_max_whitespace(self.max_whitespace)
        if not isinstance(self.strict, bool):
            raise InvalidRequestError(
                f"strict is {reprlib.repr(self.strict)}; it must be true or false", field="grammar"
            )

    @classmethod
    def of(cls, schema: dict[str, Any] | bool) -> "JsonSchema":
        return cls(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """A regular expression that the whole output must match, in the syntax that Python and Rust share."""

    pattern: str
    backend: str = "auto"
    """One of GRAMMAR_BACKENDS."""

    def __post_init__(self) -> None:
        _check_text("pattern", self.pattern, "a regular expression's text")
        _check_one_of("backend", self.backend, GRAMMAR_BACKENDS)


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """A context-free grammar: GBNF, which begins at ``root``, or Lark, which begins at ``start``."""

    grammar: str
    syntax: str = "auto"
    """One of EBNF_SYNTAXES. ``auto``: GBNF where a rule is defined by ``::=``, else Lark."""
    backend: str = "auto"
    """One of GRAMMAR_BACKENDS."""

    def __post_init__(self) -> None:
        _check_text("grammar", self.grammar, "the grammar's text")
        _check_one_of("syntax", self.syntax, EBNF_SYNTAXES)
        _check_one_of("backend", self.backend, GRAMMAR_BACKENDS)


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """The output is exactly one of ``options``. A list is taken for a tuple."""

    options: tuple[str, ...]
    backend: str = "auto"
    """One of GRAMMAR_BACKENDS. ``auto``: a trie of ramet's own."""

    def __post_init__(self) -> None:
        _check_one_of("backend", self.backend, GRAMMAR_BACKENDS)
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
    backend: str = "auto"
    """One of GRAMMAR_BACKENDS."""
    max_whitespace: int = 8
    """As in JsonSchema, for every region that is JSON."""

    def __post_init__(self) -> None:
        _check_text("spec", self.spec, "the JSON document's text")
        _check_one_of("backend", self.backend, GRAMMAR_BACKENDS)
        _check_max_whitespace(self.max_whitespace)


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


def _check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidRequestError(
            f"{name} is {reprlib.repr(value)}; it must be one of {', '.join(known)}", field="grammar"
        )


def _check_max_whitespace(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_WHITESPACE:
        raise InvalidRequestError(
            f"max_whitespace is {reprlib.repr(value)}; it must be an integer from 0 (compact) to "
            f"{MAX_WHITESPACE}",
            field="grammar",
        )
