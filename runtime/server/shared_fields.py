"""What chat and text completions have in common: sampling, constraints, routing, and what is refused."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ramet.runtime.protocol import (
    Choice,
    Ebnf,
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    ProgramTag,
    Regex,
    SamplingParams,
    StructuralTag,
)
from ramet.runtime.server.errors import bad_request

IGNORED = frozenset(("user", "safety_identifier", "metadata", "prompt_cache_key"))
"""They say who asks or what for, and change no answer."""

REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "audio": ((), "this server answers with text"),
    "best_of": ((1,), "use n"),
    "chat_template": ((), "the model's own template is used; chat_template_kwargs are its variables"),
    "function_call": ((), "use tool_choice"),
    "functions": (([],), "use tools"),
    "modalities": ((["text"],), "this server answers with text"),
    "moderation": ((), "there is none here"),
    "prediction": ((), "leave it out"),
    "prompt_cache_options": ((), "every prefix is cached; cache_salt keeps prefixes apart"),
    "prompt_cache_retention": (("in_memory",), "every prefix is cached; cache_salt keeps prefixes apart"),
    "service_tier": (("auto", "default"), "use priority"),
    "store": ((False,), "nothing is stored here"),
    "suffix": (("",), "this server completes at the end only"),
    "verbosity": (("medium",), "ask for it in a message"),
    "web_search_options": ((), "there is no search here; give the model a tool"),
}
"""OpenAI's parameters that are not honoured: the values that ask for nothing, and what to do instead."""

ELSEWHERE: Mapping[str, str] = {
    "max_new_tokens": "max_completion_tokens",
    "guided_json": "response_format",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
    "structured_outputs": "response_format, regex, choice, ebnf or structural_tag",
    "grammar": "ebnf, regex, choice, structural_tag or response_format",
    "min_new_tokens": "min_tokens",
    "rid": "request_id",
    "session_params": "session, the id of one of /v1/sessions; send the whole conversation",
    "include_stop_str_in_output": "include_stop",
    "sampling_seed": "seed",
    "enable_thinking": "chat_template_kwargs",
}
"""What parameters of other servers are called here."""

_CONSTRAINTS = ("response_format", "regex", "ebnf", "choice", "structural_tag")
_RENAMED = {"grammar": "response_format", "prompts": "prompt"}


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the answer is sampled. Null is the default. See SamplingParams for the meaning of each."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    include_stop: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    close_on_length: bool | None = None


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer conforms to; at most one of them."""

    response_format: dict[str, Any] | None = None
    """OpenAI's: text, json_object or json_schema; or a structural_tag."""
    regex: str | None = None
    ebnf: str | None = None
    choice: list[str] | None = None
    structural_tag: dict[str, Any] | str | None = None
    grammar_backend: str | None = None
    """Which engine enforces it: auto, llguidance, xgrammar or outlines."""
    max_whitespace: int | None = None
    """Most white space characters between two tokens of JSON; 0: none."""


class RoutingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose request it is and when it is due; all of them are ramet's own."""

    priority: int = 0
    """Higher runs earlier."""
    cache_salt: str = ""
    """Prefixes are shared only between requests of the same salt."""
    request_id: str | None = None
    """For /abort; the answer's id is it."""
    timeout: float | None = None
    """Seconds after which the request ends with an error."""
    session: str | None = None
    """Of /v1/sessions: the conversation's prefix stays in the cache when the request has ended."""
    program: ProgramTag = ProgramTag()
    """The program, branch and step that the request is a call of."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    """One more chunk, with the usage and no choices, at the end."""
    include_obfuscation: bool = False
    """Taken for OpenAI's clients: there is no padding here to leave out."""


def without_refused(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body less what is ignored. Raises HttpError (400) for a parameter that would not be honoured."""
    for name, (harmless, remedy) in REFUSED.items():
        value = body.get(name)
        if value is not None and not is_one_of(value, harmless):
            raise bad_request(f"{name} is not supported: {remedy}", param=name, code="unsupported_parameter")
    for name, ours in ELSEWHERE.items():
        if name in body:
            raise bad_request(
                f"there is no parameter {name!r}; here it is {ours}", param=name, code="unknown_parameter"
            )
    return {name: value for name, value in body.items() if name not in REFUSED and name not in IGNORED}


def is_one_of(value: object, others: Iterable[object]) -> bool:
    """Of the same type too: 0 is not false in JSON."""
    return any(type(value) is type(one) and value == one for one in others)


def sampling_params(fields: SamplingFields, **others: Any) -> SamplingParams:
    """What was given, and the engine's defaults for the rest. ``others``: further fields of SamplingParams.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    given = {name: getattr(fields, name) for name in SamplingFields.__struct_fields__}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None}, **others)


def grammar_spec(fields: ConstraintFields) -> GrammarSpec | None:
    """The one constraint that was asked for.

    Raises:
        HttpError: a response_format that is none (400).
        InvalidRequestError: several constraints, or one that is malformed.
    """
    found: dict[str, GrammarSpec] = {}
    formatted = None if fields.response_format is None else _formatted(fields.response_format)
    if formatted is not None:
        found["response_format"] = formatted
    if fields.regex is not None:
        found["regex"] = Regex(fields.regex)
    if fields.ebnf is not None:
        found["ebnf"] = Ebnf(fields.ebnf)
    if fields.choice is not None:
        found["choice"] = Choice(tuple(fields.choice))
    if fields.structural_tag is not None:
        found["structural_tag"] = _structural_tag(fields.structural_tag)
    if len(found) > 1:
        raise InvalidRequestError(
            f"{' and '.join(found)} exclude each other; give one constraint", field=list(found)[1]
        )
    return _with_options(next(iter(found.values()), None), fields)


def _with_options(spec: GrammarSpec | None, fields: ConstraintFields) -> GrammarSpec | None:
    options: tuple[tuple[str, str, str | int | None], ...] = (
        ("backend", "grammar_backend", fields.grammar_backend),
        ("max_whitespace", "max_whitespace", fields.max_whitespace),
    )
    for ours, theirs, value in options:
        if value is None:
            continue
        if spec is None or ours not in spec.__struct_fields__:
            raise InvalidRequestError(
                f"{theirs} has nothing to act on in this request; remove it", field=theirs
            )
        spec = msgspec.structs.replace(spec, **{ours: value})
    return spec


def renamed_for(fields: ConstraintFields, *, has_tools: bool = False) -> dict[str, str]:
    """Our names of parameters -> the client's, for errors of this request."""
    named = next((name for name in _CONSTRAINTS if getattr(fields, name) is not None), None)
    if named is None and has_tools:
        named = "tools"  # What is enforced is made of them.
    # An error without a field, of a request that has a constraint, is the grammar's.
    return _RENAMED if named is None else {**_RENAMED, "grammar": named, "": named}


def _formatted(wanted: Mapping[str, Any]) -> GrammarSpec | None:
    match wanted.get("type"):
        case "text":
            _only(wanted, "type")
            return None
        case "json_object":
            _only(wanted, "type")
            return JsonSchema.of({"type": "object"})
        case "json_schema":
            _only(wanted, "type", "json_schema")
            return _json_schema(wanted.get("json_schema"))
        case "structural_tag":
            return _structural_tag(dict(wanted))
        case other:
            raise bad_request(
                f"response_format.type is {str(other)[:80]!r}; it must be text, json_object, json_schema or "
                "structural_tag",
                param="response_format.type",
                code="invalid_value",
            )


def _json_schema(wanted: object) -> JsonSchema:
    """OpenAI's ``strict`` chooses whether the schema is enforced. Here it always is, as far as it can be:
    ``false`` only stops that a schema is refused of which a part cannot be, see JsonSchema.
    """
    where = "response_format.json_schema"
    if not isinstance(wanted, dict):
        raise bad_request(f"{where} must be an object with a schema", param=where, code="invalid_type")
    for name in wanted:
        if name not in ("name", "description", "schema", "strict"):
            # A schema that was put one level too high would otherwise constrain nothing.
            raise bad_request(
                f"there is no parameter {where}.{name[:80]}; the schema itself goes into {where}.schema",
                param=f"{where}.{name[:80]}",
                code="unknown_parameter",
            )
    schema = wanted.get("schema")
    if not isinstance(schema, dict | bool):
        raise bad_request(
            f"{where}.schema is missing; give a JSON Schema",
            param=f"{where}.schema",
            code="missing_required_parameter",
        )
    strict = wanted.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise bad_request(f"{where}.strict must be true or false", param=f"{where}.strict", code="invalid_type")
    return JsonSchema(JsonSchema.of(schema).schema, strict=strict is not False)


def _only(wanted: Mapping[str, Any], *names: str) -> None:
    for name in wanted:
        if name not in names:
            raise bad_request(
                f"there is no parameter response_format.{name[:80]} for type {wanted['type']!r}",
                param=f"response_format.{name[:80]}",
                code="unknown_parameter",
            )


def _structural_tag(wanted: dict[str, Any] | str) -> StructuralTag:
    return StructuralTag(wanted if isinstance(wanted, str) else msgspec.json.encode(wanted).decode())
