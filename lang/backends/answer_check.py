"""Whether an answer that a server was asked to constrain is what was asked for.

Servers leave out parts of a constraint without saying so: keywords of a schema that their grammar engine lacks,
or the whole of it. What comes back is checked, so that no program goes on with an answer it excluded.
"""

import json
import re

from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import Choice, GrammarSpec, InvalidRequestError, JsonSchema, Regex

SHOWN_CHARS = 80


def check_answer(name: str, grammar: GrammarSpec, text: str) -> None:
    """For an answer that ended by itself. Grammars and structural tags have no validator here, and pass.

    Raises:
        GenerationError: it does not conform; ``name`` is the server's.
        InvalidRequestError: the pattern or the schema is not valid.
    """
    match grammar:
        case Choice(options):
            fault = None if text in options else "it is none of the options"
        case Regex(pattern):
            fault = None if _compiled(pattern).fullmatch(text) else f"it does not match {pattern!r}"
        case JsonSchema(schema):
            fault = schema_fault(schema, text)
        case _:
            fault = None
    if fault is not None:
        shown = text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
        raise GenerationError(f"{name} was held to a constraint, and answered {shown!r}: {fault}")


def schema_fault(schema: str, text: str) -> str | None:
    """What is wrong with a JSON text by a schema; None: nothing."""
    # As slow to import as the whole language, and for constrained answers of remote servers only.
    from jsonschema import exceptions, validators
    from referencing.exceptions import Unresolvable

    try:
        document = json.loads(text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    described = json.loads(schema)
    kind = validators.validator_for(described, default=validators.Draft202012Validator)
    try:
        kind.check_schema(described)
        found = exceptions.best_match(kind(described).iter_errors(document))
    except (exceptions.SchemaError, Unresolvable) as error:
        raise InvalidRequestError(f"json_schema is no valid schema: {error}", field="json_schema") from error
    return None if found is None else f"{found.json_path}: {found.message}"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"regex {pattern!r} is not valid: {error}", field="regex") from None
