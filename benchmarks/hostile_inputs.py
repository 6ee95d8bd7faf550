"""A hundred constraints that were made to hang, crash or fill whoever reads them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol import Choice, Ebnf, GrammarSpec, JsonSchema, Regex, StructuralTag

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class HostileInput:
    """``make`` builds the constraint; that alone may raise InvalidRequestError."""

    name: str
    make: Callable[[], GrammarSpec]


def hostile_inputs() -> list[HostileInput]:
    groups = (
        _catastrophic(),
        _parentheses(),
        _nested_schemas(),
        _large_schemas(),
        _references(),
        _characters(),
        _numbers(),
        _combinations(),
        _grammars(),
        _doublings(),
        _tags(),
        _malformed(),
        _named_engines(),
    )
    return [HostileInput(name, make) for group in groups for name, make in group]


Made = Iterator[tuple[str, Callable[[], GrammarSpec]]]


def _schema(schema: Any, backend: str = "auto") -> Callable[[], GrammarSpec]:
    return lambda: JsonSchema(json.dumps(schema), backend)


def _pattern(pattern: str, backend: str = "auto") -> Callable[[], GrammarSpec]:
    return _schema({"type": "string", "pattern": pattern}, backend)


def _regex(pattern: str, backend: str = "auto") -> Callable[[], GrammarSpec]:
    return lambda: Regex(pattern, backend)


def _ebnf(grammar: str, syntax: str) -> Callable[[], GrammarSpec]:
    return lambda: Ebnf(grammar, syntax)


def _text(schema: str) -> Callable[[], GrammarSpec]:
    return lambda: JsonSchema(schema)


def _tag(format: Any) -> Callable[[], GrammarSpec]:
    return lambda: StructuralTag(json.dumps({"type": "structural_tag", "format": format}))


def _catastrophic() -> Made:
    patterns = (
        r"(\w+\s?){1,50}",
        r"(a+)+$",
        r"(a|a)*b",
        r"(.*a){30}",
        r"(a?){300}a{300}",
        r"(x+x+)+y",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        r"(a|b)*a(a|b){14}",
        r"a{1,100000}",
        r"((a{100}){100}){100}",
        r"[\s\S]{0,5000}x[\s\S]{0,5000}",
        r"\w{1,3000}@\w{1,3000}",
    )
    for pattern in patterns:
        yield f"pattern {pattern}", _pattern(pattern)
        yield f"regex {pattern}", _regex(pattern)


def _parentheses() -> Made:
    for count in (1_000, 30_000):
        nested = "(" * count + "a" + ")" * count
        yield f"pattern of {count} parentheses", _pattern(nested)
        yield f"regex of {count} parentheses", _regex(nested)
        yield f"lark of {count} parentheses", _ebnf(f'start: {"(" * count}"a"{")" * count}', "lark")
        yield f"gbnf of {count} parentheses", _ebnf(f'root ::= {"(" * count}"a"{")" * count}', "gbnf")
    yield "regex of 20,000 alternatives", _regex("|".join(f"w{i}x" for i in range(20_000)))


def _nested_schemas() -> Made:
    for keyword in ("items", "not", "additionalProperties"):
        yield f"1,000 levels of {keyword}", _text(f'{{"{keyword}":' * 1_000 + "true" + "}" * 1_000)
    for keyword in ("allOf", "anyOf"):
        yield f"1,000 levels of {keyword}", _text(f'{{"{keyword}":[' * 1_000 + "true" + "]}" * 1_000)
    yield "100,000 opening brackets", lambda: JsonSchema("[" * 100_000)
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4_000)}
    yield "a chain of 4,000 references", _schema({"$defs": {**chain, "d4000": True}, "$ref": "#/$defs/d0"})
    doubling = {
        f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)
    }
    yield "40 doublings by reference", _schema({"$defs": {**doubling, "d40": True}, "$ref": "#/$defs/d0"})


def _large_schemas() -> Made:
    yield "an enum of 50,000 strings", _schema({"enum": [f"value {i}" for i in range(50_000)]})
    yield "an enum of 50,000 integers", _schema({"enum": list(range(50_000))})
    yield "an enum of a string of 1 MB", _schema({"enum": ["a" * MEGABYTE]})
    yield "an enum of 4 strings of 100 KB", _schema({"enum": [letter * 100_000 for letter in "abcd"]})
    yield "a const of 400 KB", _schema({"const": "ab" * 200_000})
    yield "a choice of 50,000", lambda: Choice(tuple(f"option {i}" for i in range(50_000)))
    yield "a choice of 1 MB", lambda: Choice(("a" * MEGABYTE, "b"))
    yield "a choice of 1 MB, by llguidance", lambda: Choice(("a" * MEGABYTE, "b"), "llguidance")
    yield "5,000 properties", _schema({"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}})
    names = [f"p{i}" for i in range(1_500)]
    optional = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    yield "1,500 optional properties", _schema(optional)
    yield "1,500 required properties", _schema({**optional, "required": names})
    yield "a description of 2 MB", _schema({"type": "string", "description": "x" * 2 * MEGABYTE})
    patterns = {f"^[a-{chr(98 + i % 24)}]*{i}.*$": {"type": "integer"} for i in range(60)}
    yield "60 overlapping patternProperties", _schema({"type": "object", "patternProperties": patterns})


def _references() -> Made:
    yield "a reference to itself", _schema({"$ref": "#"})
    yield (
        "two references to each other",
        _schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    )
    yield (
        "recursion without a base",
        _schema({"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}),
    )
    yield "recursion through allOf", _schema({"allOf": [{"$ref": "#"}, {"type": "object"}]})
    yield "recursion through not", _schema({"not": {"$ref": "#"}})
    for target in (
        "file:///etc/passwd",
        "http://127.0.0.1:9/schema",
        "https://example.com/s.json",
        "../x.json",
    ):
        yield f"a reference to {target}", _schema({"$ref": target})
    yield "a reference to nothing", _schema({"$ref": "#/$defs/none"})
    yield "a reference that is a number", _schema({"$ref": 5})


def _characters() -> Made:
    yield "NUL in a pattern", _pattern("a\0b")
    yield "NUL in a schema's text", lambda: JsonSchema('{"const": "a\0b"}')
    yield "NUL, escaped, in an enum", _schema({"enum": ["a\0b"]})
    yield "NUL in a regex", _regex("a\0b")
    yield "NUL in a grammar", _ebnf('start: "a\0"', "lark")
    yield "half of a surrogate pair in a regex", _regex("\ud800")
    yield "half of a surrogate pair in a const", _schema({"const": "\udfff"})
    yield "an option of half a surrogate pair", lambda: Choice(("\ud800", "b"))
    yield "a name of 100,000 characters", _schema({"type": "object", "required": ["k" * 100_000]})


def _numbers() -> Made:
    yield "multipleOf 0.123456789", _schema({"type": "number", "multipleOf": 0.123456789})
    yield "multipleOf 1e-300", _schema({"type": "number", "multipleOf": 1e-300})
    yield "multipleOf 999,983", _schema({"type": "integer", "multipleOf": 999_983})
    yield "minimum 1e308", _schema({"type": "number", "minimum": 1e308, "maximum": 1.1e308})
    yield "minLength 1e9", _schema({"type": "string", "minLength": 10**9})
    yield "minItems 1e9", _schema({"type": "array", "minItems": 10**9})
    yield (
        "minItems 5,000 of objects",
        _schema({"type": "array", "minItems": 5_000, "items": {"type": "object"}}),
    )
    yield "maxLength 500,000", _schema({"type": "string", "maxLength": 500_000})
    yield "minProperties 1e9", _schema({"type": "object", "minProperties": 10**9})
    yield "NaN", lambda: JsonSchema('{"minimum": NaN}')


def _combinations() -> Made:
    pairs = [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)]
    yield "2^20 branches of allOf and anyOf", _schema({"type": "object", "allOf": pairs})
    overlapping = [{"type": "string", "pattern": f"a{{0,{i}}}b*c?"} for i in range(60)]
    yield "oneOf of 60 overlapping patterns", _schema({"oneOf": overlapping})
    yield (
        "anyOf of 4,000 objects",
        _schema({"anyOf": [{"type": "object", "properties": {f"p{i}": {"const": i}}} for i in range(4_000)]}),
    )
    yield (
        "uniqueItems over an enum of 12",
        _schema({"type": "array", "items": {"enum": list(range(12))}, "uniqueItems": True}),
    )
    yield (
        "contains, 50 times",
        _schema({"type": "array", "allOf": [{"contains": {"const": i}} for i in range(50)]}),
    )
    yield (
        "dependentRequired in a circle of 200",
        _schema({"dependentRequired": {f"p{i}": [f"p{(i + 1) % 200}"] for i in range(200)}}),
    )


def _grammars() -> Made:
    yield "lark that is nothing but itself", _ebnf("start: start", "lark")
    yield "lark, ambiguous", _ebnf('start: start start | "a"', "lark")
    yield "lark, an empty rule repeated", _ebnf('start: (""*)*', "lark")
    yield (
        "lark of 50,000 rules",
        _ebnf("\n".join(["start: r0", *(f'r{i}: "a"' for i in range(50_000))]), "lark"),
    )
    yield "lark of 1 MB", _ebnf('start: "' + "a" * MEGABYTE + '"', "lark")
    yield "lark that repeats 1e9 times", _ebnf('start: "a"{1,1000000000}', "lark")
    yield "lark with a hostile schema", _ebnf('start: %json {"$ref": "#"}', "lark")
    yield "lark with options", _ebnf('%llguidance {"no_forcing": false}\nstart: "a"', "lark")
    yield "gbnf that is nothing but itself", _ebnf("root ::= root", "gbnf")
    yield "gbnf, left recursion", _ebnf('root ::= root "a" | root root | "b"', "gbnf")
    yield (
        "gbnf of 20,000 rules",
        _ebnf("\n".join(["root ::= r0", *(f'r{i} ::= "a"' for i in range(20_000))]), "gbnf"),
    )
    yield "gbnf that repeats 100,000 times", _ebnf('root ::= "a"{100000}', "gbnf")
    yield "gbnf without an end of a string", _ebnf('root ::= "a', "gbnf")


def _doubling(last: str, arrow: str = "::=", start: str = "root", body: str = "{next} {next}") -> str:
    """Forty rules, each of which is twice the next."""
    rules = [f"r{index} {arrow} {body.format(next=f'r{index + 1}')}" for index in range(40)]
    return "\n".join([f"{start} {arrow} r0", *rules, f"r40 {arrow} {last}"])


def _doublings() -> Made:
    yield "gbnf that doubles 40 times", _ebnf(_doubling('"q"'), "gbnf")
    yield "gbnf that doubles what may be empty", _ebnf(_doubling('"q"?'), "gbnf")
    yield "gbnf that doubles or is empty", _ebnf(_doubling('"q"', body='{next} {next} | ""'), "gbnf")
    yield (
        "gbnf that doubles behind a choice",
        _ebnf('root ::= "a" | "b" r0\n' + _doubling('"q"').partition("\n")[2], "gbnf"),
    )
    yield "gbnf, ambiguous everywhere", _ebnf('root ::= a\na ::= a a a | a a | "q" | ""', "gbnf")
    yield "gbnf that repeats repetitions", _ebnf('root ::= ((("x"{100}){100}){100}){100}', "gbnf")
    yield "gbnf that repeats what may be empty", _ebnf('root ::= ((("x"?){0,100}){0,100}){0,100}', "gbnf")
    yield "lark that doubles 40 times", _ebnf(_doubling('"q"', ":", "start"), "lark")
    yield "lark, one lexeme that takes the next", _ebnf('start: /a+/ "a"', "lark")
    yield "lark that repeats 1e9 times by ~", _ebnf('start: "x" ~ 1000000000', "lark")
    halves = {f"d{i}": _pair(f"#/$defs/d{i + 1}") for i in range(40)}
    doubled = {"$defs": {**halves, "d40": {"const": 1}}, "$ref": "#/$defs/d0"}
    yield "a schema that doubles 40 times", _schema(doubled)
    yield "the same, compact", lambda: JsonSchema(json.dumps(doubled), max_whitespace=0)
    yield "a tag with a grammar that doubles", _tag({"type": "grammar", "grammar": _doubling('"q"')})


def _pair(reference: str) -> dict[str, Any]:
    inner = {"$ref": reference}
    return {"type": "array", "prefixItems": [inner, inner], "items": False, "minItems": 2}


def _tags() -> Made:
    deep = '{"type": "sequence", "elements": [' * 500 + '{"type": "any_text"}' + "]}" * 500
    yield "a tag of 500 sequences", lambda: StructuralTag(f'{{"type": "structural_tag", "format": {deep}}}')
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
    yield "5,000 tags", _tag({"type": "triggered_tags", "triggers": ["<a>"], "tags": [tag] * 5_000})
    yield "a tag with a hostile pattern", _tag({"type": "regex", "pattern": r"((a{100}){100}){100}"})
    yield "a tag repeated 1e9 times", _tag({"type": "repeat", "content": tag, "min": 10**9, "max": 10**9})


def _malformed() -> Made:
    yield "no JSON", lambda: JsonSchema("{")
    yield "a schema that is a list", lambda: JsonSchema("[]")
    yield "a pattern that is none", _pattern("(((")
    yield "a regex that is none", _regex("[")
    yield "a type that there is not", _schema({"type": "file"})
    yield "a tag that is no JSON", lambda: StructuralTag("{")


def _named_engines() -> Made:
    nested = "(" * 30_000 + "a" + ")" * 30_000
    yield "xgrammar: pattern of 30,000 parentheses", _pattern(nested, "xgrammar")
    yield r"xgrammar: (\w+\s?){1,50}", _regex(r"(\w+\s?){1,50}", "xgrammar")
    yield "xgrammar: minItems 5,000", _schema({"type": "array", "minItems": 5_000}, "xgrammar")
    yield "outlines: a regex of 2,000 letters", _regex("[a-z]{1,2000}", "outlines")
    yield "outlines: a choice of 2,000", lambda: Choice(tuple(f"option {i}" for i in range(2_000)), "outlines")
