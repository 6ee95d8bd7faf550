"""Keywords of arrays and objects."""

from ramet.runtime.grammar.schema import arrays, objects
from ramet.runtime.grammar.schema.automaton import TooLargeError, combine, matches
from ramet.runtime.grammar.schema.context import Context, count, is_alone, named, strings, wrong
from ramet.runtime.grammar.schema.document import step
from ramet.runtime.grammar.schema.regex_parser import ANY_TEXT, Regex
from ramet.runtime.grammar.schema.regex_syntax import literal
from ramet.runtime.grammar.schema.shapes import (
    ANY,
    NEVER,
    Array,
    Contains,
    Literal,
    Node,
    Object,
    String,
)
from ramet.runtime.grammar.schema.strings import conditions
from ramet.runtime.protocol import InvalidRequestError

ARRAY_KEYWORDS = (
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
)
OBJECT_KEYWORDS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "unevaluatedProperties",
)


def translate_array(schema: dict[str, object], pointer: str, context: Context) -> tuple[Array, ...]:
    """The arrays that the array keywords allow."""
    prefix, rest = _items(schema, pointer, context)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        raise wrong(pointer, "uniqueItems", unique, "true or false")
    array = Array(
        prefix=tuple(prefix),
        rest=rest,
        low=count(schema, "minItems", pointer, context.limits.max_items) or 0,
        high=count(schema, "maxItems", pointer, context.limits.max_items),
        contains=_contains(schema, pointer, context),
        unique=unique,
        at=pointer,
    )
    return arrays.simplify(array, context.algebra)


def translate_object(schema: dict[str, object], pointer: str, context: Context) -> tuple[Object, ...]:
    """The objects that the object keywords allow.

    Raises:
        TooLargeError: overlapping name patterns cannot be told apart.
    """
    members = named(schema.get("properties", {}), pointer, "properties")
    required = strings(schema.get("required", []), pointer, "required")
    if len(members) > context.limits.max_properties or len(required) > context.limits.max_properties:
        raise InvalidRequestError(
            f"#{pointer} has {max(len(members), len(required))} properties; the limit is "
            f"{context.limits.max_properties}: split the object",
            field="grammar",
        )
    own = {name: context.translate(item, at) for name, (item, at) in members.items()}
    patterns = _patterns(schema, pointer, context)
    rest = _additional(schema, pointer, context)
    everywhere = [node for regex, node in patterns if regex == ANY_TEXT]
    if everywhere:
        # A pattern that covers every name leaves no additional ones.
        patterns = [(regex, node) for regex, node in patterns if regex != ANY_TEXT]
        shared = context.algebra.all_of(everywhere)
        patterns = [(regex, context.algebra.intersect(node, shared)) for regex, node in patterns]
        rest = shared
    value = Object(patterns=objects.partition(patterns, context.algebra), rest=rest, at=pointer)
    props = []
    for name, node in own.items():
        matched = [part for regex, part in patterns if matches(regex, name)]
        props.append((name, context.algebra.all_of([node, *everywhere, *matched])))
    props += [(name, objects.property_node(value, name)) for name in dict.fromkeys(required) if name not in own]
    value = Object(
        props=tuple(props),
        required=frozenset(required),
        patterns=value.patterns,
        rest=rest,
        low=count(schema, "minProperties", pointer, context.limits.max_items) or 0,
        high=count(schema, "maxProperties", pointer, context.limits.max_items),
        at=pointer,
    )
    result = objects.simplify(value, context.algebra)
    if "propertyNames" in schema and context.draft >= 6:
        allowed = _name_conditions(schema["propertyNames"], step(pointer, "propertyNames"), context)
        result = tuple(
            both
            for item in result
            for other in allowed
            for both in objects.intersect(item, other, context.algebra)
        )
    return result


def _items(schema: dict[str, object], pointer: str, context: Context) -> tuple[list[Node], Node]:
    """What holds for the first items, and for those behind them."""
    items = schema.get("items", True)
    listed = isinstance(items, list)
    if listed and context.draft == 2020 and context.document.declared:
        raise wrong(pointer, "items", items, "one schema in draft 2020-12; a list of schemas is prefixItems")
    prefix: list[Node] = []
    after, key = items, "items"
    if listed and isinstance(items, list):
        prefix = [context.translate(item, step(pointer, "items", i)) for i, item in enumerate(items)]
        after, key = schema.get("additionalItems", True), "additionalItems"
    elif context.draft == 2020 and "prefixItems" in schema:
        first = schema["prefixItems"]
        if not isinstance(first, list) or not first:
            raise wrong(pointer, "prefixItems", first, "an array of schemas, not empty")
        prefix = [context.translate(item, step(pointer, "prefixItems", i)) for i, item in enumerate(first)]
    if len(prefix) > context.limits.max_items:
        raise wrong(pointer, key, f"{len(prefix)} schemas", f"at most {context.limits.max_items}")
    if key not in schema and _unevaluated(schema, "unevaluatedItems", context):
        after, key = schema["unevaluatedItems"], "unevaluatedItems"
    return prefix, context.translate(after, step(pointer, key))


def _unevaluated(schema: dict[str, object], keyword: str, context: Context) -> bool:
    """``keyword`` is there and means the additional keyword of its kind; beside others it is refused."""
    return keyword in schema and context.draft >= 2019 and is_alone(schema, keyword)


def _contains(schema: dict[str, object], pointer: str, context: Context) -> tuple[Contains, ...]:
    if "contains" not in schema or context.draft < 6:
        return ()
    low, high = 1, None
    if context.draft >= 2019:
        at_least = count(schema, "minContains", pointer, context.limits.max_items)
        low = 1 if at_least is None else at_least
        high = count(schema, "maxContains", pointer, context.limits.max_items)
    if context.approximate:
        # What is known of the items may be weaker than the schema: at most so many of more would be stricter.
        high = None
    return (Contains(context.translate(schema["contains"], step(pointer, "contains")), low=low, high=high),)


def _patterns(schema: dict[str, object], pointer: str, context: Context) -> list[tuple[Regex, Node]]:
    result: list[tuple[Regex, Node]] = []
    for text, (item, at) in named(schema.get("patternProperties", {}), pointer, "patternProperties").items():
        pattern = context.pattern(text, step(pointer, "patternProperties"), text)
        if pattern is None:
            continue
        regex = (
            pattern.required[0]
            if len(pattern.required) == 1 and not pattern.forbidden
            else combine(pattern.required, pattern.forbidden)
        )
        if regex is not None:
            result.append((regex, context.translate(item, at)))
    return result


def _additional(schema: dict[str, object], pointer: str, context: Context) -> Node:
    key = "additionalProperties"
    if key not in schema and _unevaluated(schema, "unevaluatedProperties", context):
        key = "unevaluatedProperties"
    if "patternProperties" in schema and key in schema and context.issues:
        # A pattern that was left out would make its names additional ones.
        lost = {issue.pointer for issue in context.issues}
        if step(pointer, "patternProperties") in lost:
            return ANY
    return context.translate(schema.get(key, True), step(pointer, key))


def _name_conditions(schema: object, pointer: str, context: Context) -> list[Object]:
    """Objects whose names all are strings of ``schema``, as options."""
    node = context.translate(schema, pointer)
    if node.is_any:
        return [Object()]
    names: list[str] = []
    regexes: list[Regex] = []
    for option in context.algebra.intersect(node, Node((String(),))).options:
        match option:
            case Literal(values):
                names += [value.value for value in values if isinstance(value.value, str)]
            case String() as string:
                required, forbidden = conditions(string)
                regex = required[0] if len(required) == 1 and not forbidden else combine(required, forbidden)
                regexes += [regex] if regex is not None else []
            case _:
                raise TooLargeError
    parts = [(regex, ANY) for regex in regexes] + [(literal(name), ANY) for name in names if regexes]
    if not regexes:
        return [Object(props=tuple((name, ANY) for name in names), rest=NEVER, at=pointer)]
    disjoint = objects.partition(parts, context.algebra) if len(parts) > 1 else tuple(parts)
    return [Object(patterns=disjoint, rest=NEVER, at=pointer)]
