"""plan: from a user's JSON schema to what an engine is given."""

import json
from collections.abc import Mapping

from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS, SchemaLimits, check_json_text
from ramet.runtime.grammar.schema.records import SchemaPlan


def plan(schema: str | Mapping[str, object] | bool, *, limits: SchemaLimits = DEFAULT_LIMITS) -> SchemaPlan:
    """How ``schema`` (JSON text, or its parsed form) is enforced. Deterministic, bounded in time, pure Python.

    Raises:
        InvalidRequestError: it is no JSON schema, or exceeds a limit.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    check_json_text(text, limits)
    return SchemaPlan(source=text, text=text)
