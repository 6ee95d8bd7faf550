"""From a schema to the algebra: every keyword is a condition, and all conditions of a schema hold together.

Keywords that JSON Schema does not define are annotations, as it says. A keyword that is defined and cannot be
translated is reported, never skipped.
"""

from collections.abc import Callable

from ramet.runtime.grammar.schema.algebra import Algebra, TooComplexError
from ramet.runtime.grammar.schema.automaton import TooLargeError
from ramet.runtime.grammar.schema.context import IN_PLACE, Context, is_alone, named, schemas, strings, wrong
from ramet.runtime.grammar.schema.document import Document, step
from ramet.runtime.grammar.schema.limits import SchemaLimits
from ramet.runtime.grammar.schema.pace import Pace
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.shapes import (
    ANY,
    ARRAY,
    FALSE,
    NEVER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Literal,
    Node,
    Object,
    Option,
    Ref,
    literal_of,
    node_of,
    union,
)
from ramet.runtime.grammar.schema.translate_containers import (
    ARRAY_KEYWORDS,
    OBJECT_KEYWORDS,
    translate_array,
    translate_object,
)
from ramet.runtime.grammar.schema.translate_scalars import (
    NUMBER_KEYWORDS,
    STRING_KEYWORDS,
    translate_number,
    translate_string,
)
from ramet.runtime.protocol import InvalidRequestError

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_OWN = frozenset({"type", *NUMBER_KEYWORDS, *STRING_KEYWORDS, *ARRAY_KEYWORDS, *OBJECT_KEYWORDS})
_COMBINING = frozenset({"oneOf", "not", "if", "allOf", "anyOf", "dependencies", "dependentSchemas"})
_LATE = frozenset({"oneOf", "not", "if", "dependencies", "dependentRequired", "dependentSchemas"})
"""Read after the others, which narrow the value and set the order of its properties."""
_NO_OBJECTS = (Literal((NULL, TRUE, FALSE)), NUMBER, STRING, ARRAY)
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedProperties": 2019,
    "unevaluatedItems": 2019,
    "$recursiveRef": 2019,
    "$dynamicRef": 2020,
    "prefixItems": 2020,
}

Part = Callable[[Node], Node]
"""Narrows what is known of a value by one keyword."""


class Translator:
    """Translates one document. Definitions are translated when the algebra first asks for them."""

    def __init__(
        self, document: Document, limits: SchemaLimits, *, approximate: bool, pace: Pace | None = None
    ) -> None:
        self.algebra = Algebra(self._load, limits.max_steps, pace)
        self.context = Context(document, self.algebra, limits, self._member, approximate)
        self._document = document

    @property
    def issues(self) -> tuple[Unsupported, ...]:
        return tuple(self.context.issues)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.context.notes)

    def root(self, pointer: str = "") -> Node:
        """The whole schema, or the one at ``pointer``. Raises TooComplexError, InvalidRequestError."""
        return Node((Ref(pointer),))

    def translate(self, schema: object, pointer: str) -> Node:
        """The schema at ``pointer``. Raises TooComplexError, InvalidRequestError."""
        self.algebra.check_pace()
        if isinstance(schema, bool):
            return ANY if schema else NEVER
        if not isinstance(schema, dict):
            parent, _, key = pointer.rpartition("/")
            raise wrong(parent, key, schema, "a schema: an object, true or false")
        if self.context.draft <= 7 and "$ref" in schema:
            ignored = sorted((_OWN | IN_PLACE | {"enum", "const"}) & schema.keys() - {"$ref"})
            if ignored:
                self.context.note(
                    f"#{pointer}: next to $ref, draft {self.context.draft} ignores {', '.join(ignored)}"
                )
            return self._reference(schema["$ref"], pointer)
        parts: list[Part] = []
        late: list[Part] = []
        own_at = "properties" if "properties" in schema else next((key for key in schema if key in _OWN), None)
        for keyword, value in schema.items():
            if keyword == own_at:
                parts.append(lambda given: self.algebra.intersect(given, self._own(schema, pointer)))
            if (since := _SINCE.get(keyword, 0)) > self.context.draft:
                self.context.note(
                    f"#{step(pointer, keyword)}: draft {self.context.draft} has no {keyword} "
                    f"(since {since}); it is an annotation only"
                )
            elif (part := self._condition(keyword, value, schema, pointer)) is not None:
                (late if keyword in _LATE else parts).append(part)
        result = ANY
        # What narrows the value comes first: branches that overlap as written are often disjoint after it.
        for part in parts + late:
            result = part(result)
        return result

    def _member(self, schema: object, pointer: str) -> Node:
        """The schema of a property or an item. Where it combines others it is looked at only when needed.

        A recursive schema meets itself only through members, so no definition is needed while it is read.
        """
        if isinstance(schema, dict) and not schema.keys().isdisjoint(_COMBINING):
            return Node((Ref(pointer),))
        return self.translate(schema, pointer)

    def _load(self, name: str) -> Node:
        if len(self.algebra.definitions) > self.context.limits.max_definitions:
            raise TooComplexError
        return self.translate(self._document.at(name), name)

    def _condition(self, keyword: str, value: object, schema: dict[str, object], pointer: str) -> Part | None:
        """What a keyword that is not of one type demands; None: nothing."""
        match keyword:
            case "oneOf":
                return lambda given: self._one_of(given, value, pointer)
            case "not":
                return lambda given: self._not(given, value, pointer)
            case "if":
                return lambda given: self._if(given, schema, pointer)
            case _:
                simple = self._simple(keyword, value, pointer)
                return None if simple is None else lambda given: self.algebra.intersect(given, simple())

    def _simple(self, keyword: str, value: object, pointer: str) -> Callable[[], Node] | None:
        """The conditions that do not build on complements."""
        match keyword:
            case "$ref":
                return lambda: self._reference(value, pointer)
            case "$dynamicRef":
                return lambda: self._dynamic(value, pointer)
            case "$recursiveRef":
                return lambda: self._recursive(value, pointer)
            case "const":
                return lambda: literal_of([value])
            case "enum":
                return lambda: self._enum(value, pointer)
            case "allOf":
                return lambda: self.algebra.all_of(self._each(value, pointer, "allOf"))
            case "anyOf":
                return lambda: union(self._each(value, pointer, "anyOf"))
            case "dependentRequired" | "dependentSchemas" | "dependencies":
                return lambda: self._dependencies(keyword, value, pointer)
            case _:
                return None

    def _own(self, schema: dict[str, object], pointer: str) -> Node:
        """What ``type`` and the keywords of single types demand."""
        types = self._types(schema, pointer)
        self._check_unevaluated(schema, pointer)
        options: list[Option] = []
        if simple := [value for name, value in (("null", NULL),) if name in types]:
            options.append(Literal(tuple(simple)))
        if "boolean" in types:
            options.append(Literal((TRUE, FALSE)))
        if types & {"integer", "number"}:
            integer = "number" not in types
            options += translate_number(schema, pointer, self.context, integer=integer)
        if "string" in types:
            options += translate_string(schema, pointer, self.context)
        if "array" in types:
            options += (
                translate_array(schema, pointer, self.context)
                if schema.keys() & set(ARRAY_KEYWORDS)
                else [ARRAY]
            )
        if "object" in types:
            options += self._objects(schema, pointer)
        return node_of(*options)

    def _objects(self, schema: dict[str, object], pointer: str) -> tuple[Object, ...]:
        if not schema.keys() & set(OBJECT_KEYWORDS):
            return (OBJECT,)
        try:
            return translate_object(schema, pointer, self.context)
        except TooLargeError:
            raise TooComplexError from None

    def _types(self, schema: dict[str, object], pointer: str) -> set[str]:
        declared = schema.get("type", list(_TYPES))
        types = [declared] if isinstance(declared, str) else declared
        if not isinstance(types, list) or not all(isinstance(name, str) and name in _TYPES for name in types):
            raise wrong(pointer, "type", declared, f"one or several of {', '.join(_TYPES)}")
        return set(types)

    def _check_unevaluated(self, schema: dict[str, object], pointer: str) -> None:
        """unevaluated* is additional* where nothing beside it evaluates; elsewhere it is refused."""
        if self.context.draft < 2019:
            return
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema and schema[keyword] is not True and not is_alone(schema, keyword):
                self.context.refuse(
                    pointer,
                    keyword,
                    f"{keyword} beside keywords such as allOf, anyOf or $ref is not enforced",
                    "write the whole object in one schema and use additionalProperties"
                    if keyword == "unevaluatedProperties"
                    else "write the whole array in one schema and use items",
                )

    def _reference(self, value: object, pointer: str) -> Node:
        if not isinstance(value, str):
            raise wrong(pointer, "$ref", value, "a URI reference as a string")
        return Node((Ref(self._document.resolve(value, pointer)),))

    def _dynamic(self, value: object, pointer: str) -> Node:
        """A dynamic reference is a plain one where at most one schema declares the anchor."""
        if not isinstance(value, str):
            raise wrong(pointer, "$dynamicRef", value, "a URI reference as a string")
        target = self._document.resolve(value, pointer)
        anchor = value.rpartition("#")[2]
        declared = self._document.dynamic.get(anchor, ())
        if target in declared and len(declared) > 1:
            self.context.refuse(
                pointer,
                "$dynamicRef",
                f"{len(declared)} schemas declare the dynamic anchor {anchor!r}",
                "refer to the one that is meant with $ref",
            )
            return ANY
        return Node((Ref(target),))

    def _recursive(self, value: object, pointer: str) -> Node:
        root = self._document.root
        if value != "#" or (isinstance(root, dict) and "$recursiveAnchor" in root):
            self.context.refuse(
                pointer, "$recursiveRef", "recursive anchors are not enforced", "refer with $ref instead"
            )
            return ANY
        return Node((Ref(self._document.resolve("#", pointer)),))

    def _enum(self, value: object, pointer: str) -> Node:
        if not isinstance(value, list):
            raise wrong(pointer, "enum", value, "an array of values")
        if len(value) > self.context.limits.max_enum:
            raise wrong(
                pointer, "enum", f"{len(value)} values", f"an array of at most {self.context.limits.max_enum}"
            )
        return literal_of(value)

    def _each(self, value: object, pointer: str, keyword: str) -> list[Node]:
        most = self.context.limits.max_branches
        if isinstance(value, list) and len(value) > most:
            raise InvalidRequestError(
                f"#{step(pointer, keyword)} has {len(value)} branches; the limit is {most}: use fewer, or "
                "an enum",
                field="grammar",
            )
        return [self.translate(item, at) for item, at in schemas(value, pointer, keyword)]

    def _one_of(self, given: Node, value: object, pointer: str) -> Node:
        """Disjoint branches are a union; of others, each without all the rest."""
        branches = self._each(value, pointer, "oneOf")
        narrowed = [self.algebra.intersect(given, branch) for branch in branches]
        if self.context.approximate:
            return union(narrowed)
        parts = []
        for index, branch in enumerate(narrowed):
            part = branch
            for other, rival in enumerate(narrowed):
                if other != index:
                    part = self._without(part, branches[other], rival)
            parts.append(part)
        return union(parts)

    def _without(self, node: Node, other: Node, narrowed: Node) -> Node:
        """``node`` less what ``other`` accepts; only the options that meet it (``narrowed``) are touched."""
        parts = []
        for option in node.options:
            part = Node((option,))
            disjoint = self.algebra.intersect(part, narrowed).is_never
            parts.append(part if disjoint else self.algebra.subtract(part, other))
        return union(parts)

    def _not(self, given: Node, value: object, pointer: str) -> Node:
        inner = self.translate(value, step(pointer, "not"))
        return given if self.context.approximate else self.algebra.subtract(given, inner)

    def _if(self, given: Node, schema: dict[str, object], pointer: str) -> Node:
        then, otherwise = (
            self.translate(schema.get(key, True), step(pointer, key)) for key in ("then", "else")
        )
        condition = self.translate(schema["if"], step(pointer, "if"))
        if then.is_any and otherwise.is_any:
            return given
        if self.context.approximate:
            return self.algebra.intersect(given, union([then, otherwise]))
        met = self.algebra.intersect(self.algebra.intersect(given, condition), then)
        unmet = self.algebra.intersect(self.algebra.subtract(given, condition), otherwise)
        return union([met, unmet])

    def _dependencies(self, keyword: str, value: object, pointer: str) -> Node:
        """For each name: the object lacks it, or has it and meets what depends on it.

        ``dependencies`` is enforced in later drafts too, as they allow: who writes it means it.
        """
        result = ANY
        for name, (item, at) in named(value, pointer, keyword).items():
            if isinstance(item, list):
                needed = strings(item, step(pointer, keyword), name)
                if not needed:
                    continue
                then = Node((self._having(*needed),))
            elif keyword == "dependentRequired":
                raise wrong(step(pointer, keyword), name, item, "an array of strings")
            else:
                then = self.translate(item, at)
            if then.is_any:
                continue
            absent = Object(props=((name, NEVER),), at=pointer)
            present = self.algebra.intersect(then, Node((self._having(name),)))
            result = self.algebra.intersect(result, node_of(*_NO_OBJECTS, absent, *present.options))
        return result

    def _having(self, *names: str) -> Object:
        return Object(props=tuple((name, ANY) for name in names), required=frozenset(names))
