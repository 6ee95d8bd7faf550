"""Where a schema that no value can satisfy contradicts itself."""

from collections.abc import Collection
from dataclasses import replace

from ramet.runtime.grammar.schema.algebra import TooComplexError
from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.document import Document
from ramet.runtime.grammar.schema.emit import Emitter
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.pace import Pace
from ramet.runtime.grammar.schema.translate import Translator
from ramet.runtime.protocol import InvalidRequestError

MAX_TRIED = 60
"""Subschemas that are looked at on the way; behind that many the place that was reached is named."""
MAX_STEPS = 4_000
"""Of the rewriting of each."""
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "id", "$comment", "title", "description", "default", "examples", "$defs", "definitions"}
)


def contradiction(document: Document, limits: SchemaLimits, at: str = "", pace: Pace | None = None) -> str:
    """What is wrong with the schema at ``at`` that no value can satisfy: the pointer of the smallest part of it
    that is to blame, and what to do. A part is to blame if no value can satisfy it, and the whole could be
    satisfied if any value was right there. Raises OverdueError, see ``plan``.
    """
    search = _Search(document, replace(limits, max_steps=min(limits.max_steps, MAX_STEPS)), pace)
    met = {at}
    while (inner := search.to_blame(at)) is not None:
        if inner in met:
            return (
                f"no value can satisfy the schema: at #{at} its recursive $ref has no base, every value holds "
                "another one without end; make a property on the way optional, or a list on it empty"
            )
        met.add(inner)
        at = inner
    return f"no value can satisfy the schema: {_said(document.at(at), at)}"


def _said(schema: object, at: str) -> str:
    if not at and not isinstance(schema, dict):
        return "it is false; give a schema that allows something"
    if not isinstance(schema, dict):
        return f"a value is needed at #{at}, where the schema is false; need none, or give a schema there"
    keywords = [keyword for keyword in schema if keyword not in _ANNOTATIONS]
    if len(keywords) == 1:
        return f"at #{at} its {keywords[0]} allows nothing; correct it"
    listed = ", ".join(keywords[:8])
    return f"at #{at} its conditions contradict each other ({listed}); correct one of them"


class _Search:
    def __init__(self, document: Document, limits: SchemaLimits, pace: Pace | None) -> None:
        self._pace = pace
        self._document = document
        self._limits = limits
        self._num_left = MAX_TRIED

    def to_blame(self, at: str) -> str | None:
        """The pointer of the schema inside the one at ``at`` that no value satisfies, and without which some
        value would satisfy that; None: there is no single such one."""
        never = [inner for inner in dict.fromkeys(self._document.inner(at)) if self._is_never(inner)]
        if not never or self._is_never(at, never):
            return None
        for inner in never:
            others = [other for other in never if other != inner]
            if not others or self._is_never(at, others):
                return inner
        return None

    def _is_never(self, at: str, without: Collection[str] = ()) -> bool:
        """Whether no value satisfies the schema at ``at``, where any value is right at ``without``. False too
        where that is not known."""
        if self._num_left <= 0:
            return False
        if any(at == pointer or at.startswith(f"{pointer}/") for pointer in without):
            return False
        self._num_left -= 1
        root: object = self._document.root
        for pointer in without:
            root = _replaced(root, pointer.split("/")[1:])
        if not isinstance(root, dict | bool):
            return False
        document = replace(self._document, root=root)
        try:
            translator = Translator(document, self._limits, approximate=False, pace=self._pace)
            node = translator.root(at)
            return Emitter(translator.algebra, node).emit(node) is False
        except (TooComplexError, TooLargeError, InvalidRequestError):
            return False


def _replaced(value: object, path: list[str]) -> object:
    """``value`` with true at ``path``, which exists in it, unless true is around it already."""
    if not path or value is True:
        return True
    key = path[0].replace("~1", "/").replace("~0", "~")
    if isinstance(value, list):
        index = int(key)
        return [*value[:index], _replaced(value[index], path[1:]), *value[index + 1 :]]
    assert isinstance(value, dict)
    return {**value, key: _replaced(value[key], path[1:])}
