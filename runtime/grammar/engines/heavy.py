"""Which grammars are tried in another process first: those that grow when written out, or hold schemas
that take long to plan.

llguidance bounds what it makes of a grammar, but looks at its bounds between steps that can be long: three
nested repetitions of a few characters take it seconds a mask, and a compilation or a mask that has begun cannot
be stopped in this process.
"""

from ramet.runtime.grammar.engines.endless_rules import written_size
from ramet.runtime.grammar.engines.lark_text import embedded_schemas, syntax_of
from ramet.runtime.grammar.engines.structural import (
    Either,
    Format,
    Grammar,
    Repeat,
    SeparatedTags,
    Sequence,
    StructuralDocument,
    Tag,
    TriggeredTags,
)
from ramet.runtime.grammar.schema import Pace, plan
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS
from ramet.runtime.protocol import Ebnf, InvalidRequestError

LIGHT_SECONDS = 0.5
"""CPU time of planning the schemas of one constraint. Schemas in use take milliseconds; what takes longer is
tried where it can be ended."""
MAX_LIGHT = 2_000
"""Parts, written out: compiled in milliseconds, masks included."""


def is_heavy_grammar(ebnf: Ebnf) -> bool:
    """False for one that is refused for its length, unread."""
    if len(ebnf.grammar) > DEFAULT_LIMITS.max_bytes:
        return False
    return written_size(ebnf.grammar, syntax_of(ebnf)) > MAX_LIGHT


def check_schemas(ebnf: Ebnf, pace: Pace) -> None:
    """Raises OverdueError where the schemas in a Lark grammar take long to plan."""
    if len(ebnf.grammar) > DEFAULT_LIMITS.max_bytes or syntax_of(ebnf) != "lark":
        return
    try:
        for schema in embedded_schemas(ebnf.grammar):
            plan(schema, pace=pace)
    except InvalidRequestError:
        # Refused when it is compiled, with what is around it.
        return


def is_heavy_tag(document: StructuralDocument) -> bool:
    return _size(document.root) > MAX_LIGHT


def check_tag(document: StructuralDocument, pace: Pace) -> None:
    """As ``check_schemas``, of the grammars in a tag; its own schemas are planned as it is read."""
    stack: list[Format] = [document.root]
    while stack:
        match stack.pop():
            case Sequence(elements) | Either(elements):
                stack += elements
            case Repeat(content) | Tag(_, content):
                stack.append(content)
            case TriggeredTags() | SeparatedTags() as several:
                stack += several.tags
            case Grammar(ebnf):
                check_schemas(ebnf, pace)
            case _:
                pass


def _size(format_: Format) -> int:
    match format_:
        case Sequence(elements) | Either(elements):
            return sum(map(_size, elements))
        case Repeat(content, low, high):
            return max(1, low if high is None else high) * _size(content)
        case Tag(_, content, _):
            return _size(content)
        case TriggeredTags() | SeparatedTags():
            return sum(map(_size, format_.tags))
        case Grammar(ebnf):
            return max(1, written_size(ebnf.grammar, syntax_of(ebnf)))
        case _:
            return 1
