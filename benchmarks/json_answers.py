"""Judging a JSON answer: whether jsonschema finds it valid, and how much of it is whitespace between tokens."""

import json
import logging
import re
from typing import Any

import jsonschema

from ramet.runtime.grammar.schema.validate import Validator

logger = logging.getLogger(__name__)

LOOP_CHARACTERS = 40
"""Whitespace in a row, between tokens of the JSON text, that nobody would write to indent."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]+")


def problem(schema: Any, text: str) -> str | None:
    r"""What is wrong with the answer; None: nothing.

    The judge is jsonschema with the format checks of the schema's draft. It reads patterns as Python's ``re``,
    to which ``\w`` is more than to JSON schemas, and ``\W`` less; so what it finds is looked at once more with
    patterns in ECMA-262's sense.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        if validator(schema, format_checker=validator.FORMAT_CHECKER).is_valid(value):
            return None
    except re.error as error:
        logger.debug("re cannot read a pattern: %s", error)
    return next(iter(Validator(json.dumps(schema)).problems(text)), None)


def whitespace_runs(text: str) -> list[int]:
    """Lengths of the runs of whitespace outside of strings; the text may end early."""
    return [len(run) for run in _SPACE.findall(_STRING.sub('""', text))]
