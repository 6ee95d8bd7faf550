"""plan: from a user's JSON schema to what an engine is given."""

import json
from collections.abc import Mapping
from dataclasses import replace

from ramet.runtime.grammar.schema.algebra import TooComplexError, origin
from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.contradiction import contradiction
from ramet.runtime.grammar.schema.document import Document, load
from ramet.runtime.grammar.schema.emit import Emitter
from ramet.runtime.grammar.schema.engines import Obstacles
from ramet.runtime.grammar.schema.limits import DEFAULT_LIMITS, SchemaLimits
from ramet.runtime.grammar.schema.origins import Origins, in_source, origin_of
from ramet.runtime.grammar.schema.pace import Pace
from ramet.runtime.grammar.schema.productive import baseless, reachable
from ramet.runtime.grammar.schema.records import SchemaPlan, Unsupported
from ramet.runtime.grammar.schema.translate import Translator
from ramet.runtime.protocol import InvalidRequestError, UnsupportedConstraintError

_TOO_COMPLEX = Unsupported(
    "",
    "",
    "the conditions of the schema multiply beyond what can be written out",
    "make branches disjoint by a const property, and combine fewer of allOf, oneOf, not and if",
)

Json = dict[str, object] | bool


def plan(
    schema: str | Mapping[str, object] | bool,
    *,
    limits: SchemaLimits = DEFAULT_LIMITS,
    at: str = "",
    pace: Pace | None = None,
) -> SchemaPlan:
    """How ``schema`` (JSON text, or its parsed form) is enforced, or only the part of it at the JSON pointer
    ``at``, which exists. Deterministic, bounded in time, pure Python.

    What is never enforced, so refused or checked afterwards, is in the plan's ``unsupported``.

    Raises:
        InvalidRequestError: it is no JSON schema, refers to nothing or outside itself, or exceeds a limit.
        UnsupportedConstraintError: no value can satisfy it.
        OverdueError: it takes longer than ``pace`` allows.
    """
    source = schema if isinstance(schema, str) else _dump(schema)
    document = load(source, limits)
    try:
        written, origins, issues, notes = _rewrite(document, at, limits, approximate=False, pace=pace)
        if issues:
            # Without complements: what is lost may only make the schema weaker, never stricter.
            written, origins, more, notes = _rewrite(document, at, limits, approximate=True, pace=pace)
            issues = tuple(dict.fromkeys(in_source(issue, document) for issue in issues + more))
        if written is False:
            raise UnsupportedConstraintError(contradiction(document, limits, at, pace), field="grammar")
    except RecursionError:
        raise InvalidRequestError(
            "the schema nests too deeply, through its references, to be read; flatten it", field="grammar"
        ) from None

    def locate(issue: Unsupported) -> Unsupported:
        return in_source(replace(issue, pointer=origin_of(issue.pointer, written, origins, document)), document)

    return SchemaPlan(
        source=source,
        text=_dump({} if written is True else written),
        unsupported=issues,
        obstacles=Obstacles(written, limits, locate),
        notes=notes,
    )


def _rewrite(
    document: Document, at: str, limits: SchemaLimits, *, approximate: bool, pace: Pace | None
) -> tuple[Json, Origins, tuple[Unsupported, ...], tuple[str, ...]]:
    """The plain schema, where its parts come from, what it leaves out, and notes."""
    translator = Translator(document, limits, approximate=approximate, pace=pace)
    try:
        root = translator.root(at)
        names = reachable(root, translator.algebra)
        circle = baseless(names, translator.algebra)
        if circle is not None:
            raise UnsupportedConstraintError(
                f"the recursive $ref at #{origin(circle)} has no base: it refers back to itself before any "
                "array or object begins; let the recursion go through a property or an item",
                field="grammar",
            )
        emitter = Emitter(translator.algebra, root)
        written = emitter.emit(root)
    except (TooComplexError, TooLargeError):
        return True, {}, (*translator.issues, _TOO_COMPLEX), translator.notes
    return written, emitter.origins, (*translator.issues, *emitter.issues), translator.notes


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
