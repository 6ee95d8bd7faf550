"""Constraints as servers that speak OpenAI's API take them."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ramet.lang.backends.answer_text import ANSWER, Wrapping
from ramet.lang.backends.openai_flavours import Flavour
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    StructuralTag,
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """Fields of the request, and how the answer is to be read."""

    fields: dict[str, Any] = field(default_factory=dict)
    wrapping: Wrapping | None = None


def constraint(grammar: GrammarSpec, flavour: Flavour) -> Constraint:
    """How a server of this kind is asked for it.

    Raises:
        UnsupportedError: it cannot be held to this.
        InvalidRequestError: the schema is no JSON.
    """
    _refuse_options(grammar, f"a server of the flavour {flavour.name!r}")
    if isinstance(grammar, JsonSchema) and flavour.name != "openai":
        return Constraint(_response_format(_document(grammar.schema), strict=grammar.strict))
    own = {"openai": _for_openai, "vllm": _for_vllm, "sglang": _for_sglang, "ramet": _for_ramet}
    if (asked := own[flavour.name](grammar)) is not None:
        return asked
    raise UnsupportedError(
        f"a server of the flavour {flavour.name!r} cannot constrain an answer by "
        f"{type(grammar).__struct_config__.tag}; it can by {', '.join(sorted(flavour.grammars))}"
    )


def object_constraint(grammar: GrammarSpec, name: str) -> Constraint:
    """For servers that enforce JSON schemas of objects and nothing else; ``name`` is the backend's.

    Raises as ``constraint``.
    """
    _refuse_options(grammar, name)
    if (asked := _for_openai(grammar)) is None:
        raise UnsupportedError(
            f"{name} cannot constrain an answer by {type(grammar).__struct_config__.tag}; it can by choice, "
            "json_schema, regex"
        )
    return asked


def _refuse_options(grammar: GrammarSpec, name: str) -> None:
    """What a spec says besides the constraint itself has no place in requests."""
    for option, usual in (("backend", "auto"), ("max_whitespace", 8), ("syntax", "auto")):
        value = getattr(grammar, option, usual)
        if value != usual:
            raise UnsupportedError(f"{name} takes a constraint without {option}={value!r}; leave it out")


def _for_openai(grammar: GrammarSpec) -> Constraint | None:
    match grammar:
        case Choice(options):
            return _wrapped({"type": "string", "enum": list(options)}, Wrapping(is_text=True))
        case Regex(pattern):
            return _wrapped({"type": "string", "pattern": f"^(?:{pattern})$"}, Wrapping(is_text=True))
        case JsonSchema(schema, strict=strict):
            document = _document(schema)
            if isinstance(document, dict) and document.get("type") == "object" and "anyOf" not in document:
                return Constraint(_response_format(document, strict=strict))
            return _wrapped(document, Wrapping(is_text=False), strict=strict)
        case _:
            return None


def _for_vllm(grammar: GrammarSpec) -> Constraint | None:
    match grammar:
        case Choice(options):
            said: dict[str, Any] = {"choice": list(options)}
        case Regex(pattern):
            said = {"regex": pattern}
        case Ebnf(text):
            said = {"grammar": text}
        case StructuralTag(spec):
            said = {"structural_tag": spec}
        case _:
            return None
    return Constraint({"structured_outputs": said})


def _for_sglang(grammar: GrammarSpec) -> Constraint | None:
    match grammar:
        case Choice(options):
            # It has regular expressions, but no choice of its own.
            return Constraint({"regex": "(" + "|".join(map(_escaped, options)) + ")"})
        case Regex(pattern):
            return Constraint({"regex": pattern})
        case Ebnf(text):
            return Constraint({"ebnf": text})
        case StructuralTag(spec):
            return Constraint({"response_format": _document(spec)})
        case _:
            return None


def _for_ramet(grammar: GrammarSpec) -> Constraint | None:
    match grammar:
        case Choice(options):
            return Constraint({"choice": list(options)})
        case Regex(pattern):
            return Constraint({"regex": pattern})
        case Ebnf(text):
            return Constraint({"ebnf": text})
        case StructuralTag(spec):
            return Constraint({"structural_tag": _document(spec)})
        case _:
            return None


def _wrapped(schema: object, wrapping: Wrapping, *, strict: bool = True) -> Constraint:
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {ANSWER: schema},
        "required": [ANSWER],
        "additionalProperties": False,
    }
    if isinstance(schema, dict):
        if '"$ref": "#"' in json.dumps(schema):
            raise UnsupportedError(
                "the schema is no object and refers to itself as a whole, for which the server's form has no "
                "place; move it into $defs"
            )
        # References in it are from the root.
        for name in ("$defs", "definitions"):
            if name in schema:
                outer[name] = schema[name]
        inner = {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$schema")}
        outer["properties"] = {ANSWER: inner}
    return Constraint(_response_format(outer, strict=strict), wrapping)


def _response_format(schema: object, *, strict: bool) -> dict[str, Any]:
    described = {"name": ANSWER, "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"grammar is no JSON: {error}", field="grammar") from None


def _escaped(option: str) -> str:
    """As a regular expression of any dialect: only what has a meaning is escaped."""
    return re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", option)
