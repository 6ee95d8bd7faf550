"""From the algebra to a plain schema for an engine.

What the dialect has no keyword for is written out where that is exact and small, else reported and left out.
"""

from fractions import Fraction
from typing import TypeVar

from ramet.runtime.grammar.schema import numbers
from ramet.runtime.grammar.schema.algebra import Algebra, origin
from ramet.runtime.grammar.schema.emit_arrays import expand_array
from ramet.runtime.grammar.schema.emit_objects import count_bounds, expand_object, forbid_names, spare_names
from ramet.runtime.grammar.schema.emit_strings import engine_pattern, string_patterns
from ramet.runtime.grammar.schema.origins import Origins
from ramet.runtime.grammar.schema.productive import option_is_productive, productive, reachable
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.shapes import (
    ARRAY,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Array,
    Everything,
    Literal,
    Node,
    Number,
    Object,
    Option,
    Ref,
    String,
)

Json = dict[str, object]
_Container = TypeVar("_Container", Array, Object)

_MAX_LISTED = 2_000
_MAX_MULTIPLE = 10_000
"""An automaton for multiples has as many states. 1,000,003 took llguidance 8 s and 272 MB."""
_MAX_DIGITS = (1 << 32) - 1
"""llguidance holds them in 32 bits."""
_OPEN_TYPES: dict[type[Option], tuple[Option, str]] = {
    Number: (NUMBER, "number"),
    String: (STRING, "string"),
    Array: (ARRAY, "array"),
    Object: (OBJECT, "object"),
}


class Emitter:
    """Writes one plan's schema. ``issues`` collects what is left out."""

    def __init__(self, algebra: Algebra, root: Node) -> None:
        self.issues: dict[Unsupported, None] = {}
        self._algebra = algebra
        self._names: dict[str, None] = {}
        self._productive: frozenset[str] = frozenset()
        self._learn(root)
        self._numbers: dict[str, str] = {}
        self._origins: dict[int, tuple[object, str]] = {}

    @property
    def origins(self) -> Origins:
        """Of what was emitted, where in the caller's schema it comes from, as far as that is known."""
        return self._origins

    def emit(self, root: Node) -> Json | bool:
        """The schema of ``root``, with $defs; False: no value meets it."""
        chain: list[tuple[str, Node]] = []
        while len(root.options) == 1 and isinstance(root.options[0], Ref):
            name = root.options[0].name
            if name not in self._productive:
                return False
            chain.append((name, root))
            root = self._algebra.definition(name)
        if chain:
            # What refers to itself stays a definition: the chain is followed up to the first such.
            met = set(reachable(root, self._algebra))
            root = next((node for name, node in chain if name in met), root)
        schema = self._schema(root)
        if isinstance(schema, bool):
            return schema
        definitions: Json = {}
        while len(definitions) < len(self._numbers):
            for name, key in list(self._numbers.items())[len(definitions) :]:
                definition = self._schema(self._algebra.definition(name))
                self._originates(definition, origin(name))
                definitions[key] = definition
        if not definitions:
            return schema
        whole: Json = {**schema, "$defs": definitions}
        if id(schema) in self._origins:
            self._originates(whole, self._origins[id(schema)][1])
        return whole

    def _originates(self, schema: Json | bool, at: str) -> None:
        if not isinstance(schema, bool):
            self._origins.setdefault(id(schema), (schema, at))

    def _learn(self, node: Node) -> None:
        """Writing conditions out can make new definitions: which of them have a value has to be known."""
        names = reachable(node, self._algebra)
        if not self._names.keys() >= set(names):
            self._names |= dict.fromkeys(names)
            self._productive = productive(list(self._names), self._algebra)

    def _report(self, issue: Unsupported) -> None:
        self.issues.setdefault(issue)

    def _schema(self, node: Node) -> Json | bool:
        if node.is_any:
            return True
        self._algebra.check_pace()
        types: list[str] = []
        others: list[Json] = []
        for option in node.options:
            if not option_is_productive(option, self._productive):
                continue
            if isinstance(option, Literal):
                found, rest = _literal_types(option)
                types += found
                others += rest
            elif type(option) in _OPEN_TYPES and option == _OPEN_TYPES[type(option)][0]:
                types.append(_OPEN_TYPES[type(option)][1])
            else:
                others += self._options(option)
        if types:
            others.insert(0, {"type": types[0] if len(types) == 1 else types})
        if not others:
            return False
        return others[0] if len(others) == 1 else {"anyOf": others}

    def _options(self, option: Option) -> list[Json]:
        written = self._written(option)
        if isinstance(option, Number | String | Array | Object):
            for schema in written:
                self._originates(schema, option.at)
        return written

    def _written(self, option: Option) -> list[Json]:
        match option:
            case Everything():
                return [{}]
            case Ref(name):
                key = self._numbers.setdefault(name, f"d{len(self._numbers)}")
                return [{"$ref": f"#/$defs/{key}"}]
            case Number():
                return self._number(option)
            case String():
                return self._string(option)
            case Array():
                lists = expand_array(option, self._algebra, self._report)
                return [self._array(item) for item in self._living(option, lists)]
            case Object():
                items = expand_object(option, self._algebra, self._report)
                return [self._object(item) for item in self._living(option, items)]
            case Literal():
                raise AssertionError("literals are written by their types")

    def _living(self, option: Option, expanded: list[_Container]) -> list[_Container]:
        """Those of ``expanded`` that some value meets."""
        if len(expanded) == 1 and expanded[0] == option:
            return expanded
        self._learn(Node(tuple(expanded)))
        return [item for item in expanded if option_is_productive(item, self._productive)]

    def _number(self, number: Number) -> list[Json]:
        if number.not_multiples and (values := numbers.listed(number, _MAX_LISTED)) is not None:
            return [{"enum": values}] if values else []
        schema: Json = {"type": "integer" if number.integer else "number"}
        if number.low is not None:
            schema["exclusiveMinimum" if number.low_open else "minimum"] = _plain(number.low)
        if number.high is not None:
            schema["exclusiveMaximum" if number.high_open else "maximum"] = _plain(number.high)
        if number.multiple is not None and self._can_be_multiple(number.multiple, number.at):
            schema["multipleOf"] = _plain(number.multiple)
        if number.not_multiples:
            what = "no integer" if number.not_multiples == (Fraction(1),) else "no multiple of a number"
            self._report(
                Unsupported(number.at, "not", f"a number that is {what} cannot be enforced", "state what it is")
            )
        return [schema]

    def _can_be_multiple(self, multiple: Fraction, at: str) -> bool:
        if numbers.decimal_digits(multiple) > _MAX_MULTIPLE:
            why = "takes an engine too long to build"
            remedy = f"use one whose digits, without the point, are at most {_MAX_MULTIPLE}"
        elif numbers.binary_digits(multiple) > _MAX_DIGITS:
            why = "has too many digits for an engine, which computes with binary floating point"
            remedy = "use one such as 0.01 or 0.25, at most 1000000000; strict=false checks it afterwards"
        else:
            return True
        self._report(Unsupported(at, "multipleOf", f"a multiple of {float(multiple)} {why}", remedy))
        return False

    def _string(self, string: String) -> list[Json]:
        patterns = string_patterns(string, self._report)
        if patterns is None:
            return []
        schema: Json = {"type": "string"}
        if string.low:
            schema["minLength"] = string.low
        if string.high is not None:
            schema["maxLength"] = string.high
        if len(patterns) == 1:
            schema["pattern"] = engine_pattern(patterns[0])
        elif patterns:
            schema["allOf"] = [{"pattern": engine_pattern(regex)} for regex in patterns]
        return [schema]

    def _array(self, array: Array) -> Json:
        schema: Json = {"type": "array"}
        if array.prefix:
            schema["prefixItems"] = [self._schema(node) for node in array.prefix]
        rest = self._schema(array.rest)
        if rest is not True:
            schema["items"] = rest
        if array.low:
            schema["minItems"] = array.low
        if array.high is not None and not (rest is False and array.high == len(array.prefix)):
            schema["maxItems"] = array.high
        return schema

    def _object(self, value: Object) -> Json:
        schema: Json = {"type": "object"}
        rest = self._schema(value.rest)
        props = {name: self._schema(node) for name, node in value.props}
        low, high = count_bounds(value)
        classes = spare_names(value, self._algebra)
        if low or high is not None:
            # An engine counts properties only where each listed one is required; a pattern can forbid a name.
            forbidden = [name for name, inner in props.items() if inner is False]
            props = {name: inner for name, inner in props.items() if inner is not False}
            classes = forbid_names(classes, forbidden)
        patterns = {engine_pattern(regex): self._schema(node) for regex, node in classes}
        if rest is False and not any(patterns.values()):
            props = {name: inner for name, inner in props.items() if inner is not False}
            patterns = {}
        if props:
            schema["properties"] = props
        if value.required:
            schema["required"] = [name for name in props if name in value.required]
        if patterns:
            schema["patternProperties"] = patterns
        if rest is not True:
            schema["additionalProperties"] = rest
        if low:
            schema["minProperties"] = low
        if high is not None:
            schema["maxProperties"] = high
        return schema


def _literal_types(literal: Literal) -> tuple[list[str], list[Json]]:
    """Types that are covered whole, and the enum of the other values."""
    values = list(literal.values)
    types = []
    if NULL in values:
        types.append("null")
        values.remove(NULL)
    if TRUE in values and FALSE in values:
        types.append("boolean")
        values.remove(TRUE)
        values.remove(FALSE)
    if not values:
        return types, []
    if len(values) == 1:
        return types, [{"const": values[0].value}]
    return types, [{"enum": [value.value for value in values]}]


def _plain(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)
