"""JSON Schema that holds: rewritten exactly where it can be enforced, else refused by name. No torch."""

from ramet.runtime.grammar.schema.document import load
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS, SchemaLimits, check_ebnf
from ramet.runtime.grammar.schema.pace import OverdueError, Pace
from ramet.runtime.grammar.schema.planner import plan
from ramet.runtime.grammar.schema.records import ENGINES, SchemaPlan, Unsupported
from ramet.runtime.grammar.schema.validate import Validator

__all__ = [
    "DEFAULT_LIMITS",
    "ENGINES",
    "OverdueError",
    "Pace",
    "SchemaLimits",
    "SchemaPlan",
    "Unsupported",
    "Validator",
    "check_ebnf",
    "load",
    "plan",
]
