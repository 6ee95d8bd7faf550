"""Small random schemas and values that often meet them, for tests against jsonschema."""

from random import Random
from typing import Any

NAMES = "abc"
TYPES: list[str | list[str]] = [
    "null",
    "boolean",
    "integer",
    "number",
    "string",
    "array",
    "object",
    ["string", "integer"],
    ["array", "object", "null"],
]
PATTERNS = ["^a", "b$", "a|1", "^[abx]*$", "x+", "^(?!a)", "^(ab|1)*$", "^a?(?=b)b*$"]
NAME_SCHEMAS: list[dict[str, Any]] = [
    {"maxLength": 1},
    {"pattern": "^[ab]"},
    {"enum": ["a", "x"]},
    {"not": {"const": "b"}},
]
LEAVES = ("type", "enum", "const", "minimum", "minLength", "pattern", "required")
ALL = (
    *LEAVES, "type", "properties", "additionalProperties", "patternProperties", "propertyNames",
    "minProperties", "items", "prefixItems", "minItems", "uniqueItems", "contains", "not", "allOf", "anyOf",
    "oneOf", "if", "dependentRequired", "dependentSchemas", "$ref",
)  # fmt: skip


def random_value(random: Random, depth: int = 0) -> Any:
    match random.randrange(8 if depth < 2 else 6):
        case 0:
            return None
        case 1:
            return random.choice([True, False])
        case 2:
            return random.randrange(-3, 8)
        case 3:
            return random.choice([0.5, 1.5, 2.0, -1.25])
        case 4 | 5:
            return "".join(random.choice("abx1") for _ in range(random.randrange(4)))
        case 6:
            return [random_value(random, depth + 1) for _ in range(random.randrange(4))]
        case _:
            return {random.choice("abcx"): random_value(random, depth + 1) for _ in range(random.randrange(4))}


def random_schema(random: Random) -> dict[str, Any]:
    """With definitions, of which ``q`` refers to itself."""
    schema = _schema(random, 0)
    return {
        **(schema if isinstance(schema, dict) else {}),
        "$defs": {
            "p": _schema(random, 3),
            "q": {
                "type": ["object", "null", "string"],
                "properties": {"a": {"$ref": "#/$defs/q"}, "b": _schema(random, 3)},
                "additionalProperties": random.choice([True, False, {"type": "integer"}]),
            },
        },
    }


def _schema(random: Random, depth: int) -> Any:
    if depth and random.random() < 0.08:
        return random.choice([True, False])
    result: dict[str, Any] = {}
    for _ in range(random.randrange(1, 3 if depth else 4)):
        _add(result, random.choice(ALL if depth < 3 else LEAVES), random, depth)
    return result


def _add(result: dict[str, Any], keyword: str, random: Random, depth: int) -> None:
    def inner(count: int = 1) -> list[Any]:
        return [_schema(random, depth + 1) for _ in range(count)]

    match keyword:
        case "type":
            result[keyword] = random.choice(TYPES)
        case "enum":
            result[keyword] = [random_value(random) for _ in range(random.randrange(1, 5))]
        case "const":
            result[keyword] = random_value(random)
        case "minimum":
            chosen = random.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
            result[chosen] = random.choice([0, 1, 2, 3, 1.5, -1])
            if random.random() < 0.3:
                result["multipleOf"] = random.choice([1, 2, 3, 0.5, 1.5])
        case "pattern":
            result[keyword] = random.choice(PATTERNS)
        case _:
            _add_nested(result, keyword, random, inner)


def _add_nested(result: dict[str, Any], keyword: str, random: Random, inner: Any) -> None:
    match keyword:
        case "required":
            result[keyword] = random.sample(NAMES, random.randrange(1, 3))
        case "minLength" | "minItems" | "minProperties":
            result[random.choice([keyword, keyword.replace("min", "max")])] = random.randrange(4)
        case "dependentRequired":
            result[keyword] = {random.choice(NAMES): random.sample(NAMES, 1)}
        case "dependentSchemas":
            result[keyword] = {random.choice(NAMES): inner()[0]}
        case "propertyNames":
            result[keyword] = random.choice(NAME_SCHEMAS)
        case _:
            _add_schemas(result, keyword, random, inner)


def _add_schemas(result: dict[str, Any], keyword: str, random: Random, inner: Any) -> None:
    match keyword:
        case "uniqueItems":
            result[keyword] = True
        case "properties":
            names = NAMES[: random.randrange(1, 4)]
            result[keyword] = dict(zip(names, inner(len(names)), strict=True))
        case "patternProperties":
            patterns = random.sample(["^a", "b", "^.$", "x"], random.randrange(1, 3))
            result[keyword] = dict(zip(patterns, inner(len(patterns)), strict=True))
        case "prefixItems":
            result[keyword] = inner(random.randrange(1, 3))
        case "allOf" | "anyOf" | "oneOf":
            result[keyword] = inner(random.randrange(1, 4))
        case "contains":
            result[keyword] = inner()[0]
            for bound in ("minContains", "maxContains"):
                if random.random() < 0.4:
                    result[bound] = random.randrange(3)
        case "if":
            result["if"], result["then"], result["else"] = inner(3)
            if random.random() < 0.3:
                del result[random.choice(["then", "else"])]
        case "$ref":
            result[keyword] = random.choice(["#/$defs/p", "#/$defs/q"])
        case _:
            result[keyword] = inner()[0]
