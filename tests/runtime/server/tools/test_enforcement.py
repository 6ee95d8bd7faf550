"""What holds calls to their schemas: checked with jsonschema as the judge."""

import json
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, models, pre_tokenizers

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    JsonSchema,
    Regex,
    StructuralTag,
    UnsupportedConstraintError,
)
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.server.tools.enforcement import enforcement
from ramet.runtime.server.tools.formats import HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_NAMED, ToolFormat
from ramet.runtime.tokenizer import FastTokenizer
from ramet.runtime.tokenizer.spelling import byte_alphabet
from tests.runtime.engine.builders import byte_spec
from tests.runtime.grammar.engines.walking import takes

ALL = frozenset(("json_schema", "structural_tag"))
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"$ref": "#/$defs/value"}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {**NODE, "$defs": {"value": {"type": "integer"}}}},
    },
    {
        "type": "function",
        "function": {"name": "g", "parameters": {**NODE, "$defs": {"value": {"type": "string"}}}},
    },
]


def choice(
    wanted: object = "required", *, parallel: bool | None = None, tools: list[Any] | None = None
) -> ToolChoice:
    return tool_choice(tools or TOOLS, wanted, parallel=parallel)


def validator(grammar: GrammarSpec | None) -> Draft202012Validator:
    assert isinstance(grammar, JsonSchema)
    schema = json.loads(grammar.schema)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def call(name: str, arguments: object, key: str = "arguments") -> dict[str, object]:
    return {"name": name, key: arguments}


def test_each_tool_is_held_to_its_own_definitions() -> None:
    held = enforcement(choice(), HERMES, ALL, None)
    assert held.prompt_suffix == "<tool_call>\n"
    judge = validator(held.grammar)
    assert judge.is_valid(call("f", {"value": 1, "next": {"value": 2}}))
    assert judge.is_valid(call("g", {"value": "x", "next": {"value": "y"}}))
    for wrong in (
        call("f", {"value": "x"}),
        call("f", {"next": {"value": "x"}}),
        call("g", {"value": 1}),
        call("h", {}),
    ):
        assert not judge.is_valid(wrong)
    assert not judge.is_valid({"name": "f"})


def test_each_format_has_its_own_form() -> None:
    assert validator(enforcement(choice(), LLAMA3, ALL, None).grammar).is_valid(call("f", {}, "parameters"))
    mistral = enforcement(choice(), MISTRAL, ALL, None)
    assert mistral.prompt_suffix == "[TOOL_CALLS]"
    assert validator(mistral.grammar).is_valid([call("f", {}), call("g", {})])
    assert not validator(mistral.grammar).is_valid([])
    single = validator(enforcement(choice(parallel=False), MISTRAL, ALL, None).grammar)
    assert single.is_valid([call("f", {})])
    assert not single.is_valid([call("f", {}), call("f", {})])
    assert validator(enforcement(choice(), JSON, ALL, None).grammar).is_valid([call("f", {})])
    one = validator(enforcement(choice(parallel=False), JSON, ALL, None).grammar)
    assert one.is_valid(call("f", {}))
    named = enforcement(choice({"type": "function", "function": {"name": "f"}}), MISTRAL_NAMED, ALL, None)
    assert (named.prompt_suffix, named.named) == ("[TOOL_CALLS]f[ARGS]", "f")
    assert validator(named.grammar).is_valid({"value": 3})
    several = enforcement(choice(), MISTRAL_NAMED, ALL, None)
    assert (several.prompt_suffix, several.named) == ("[TOOL_CALLS]", None)
    assert validator(several.grammar).is_valid([call("g", {})])


def test_free_text_or_a_call() -> None:
    for format in (HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_NAMED):
        held = enforcement(choice("auto"), format, ALL, None)
        assert isinstance(held.grammar, StructuralTag)
        assert json.loads(held.grammar.spec)["type"] == "structural_tag"
        assert held.prompt_suffix == ""
        assert enforcement(choice("auto"), format, frozenset(), None).grammar is None


def test_strict_tools_need_enforcement() -> None:
    strict = [{"type": "function", "function": {"name": "f", "strict": True}}]
    for format, grammars in ((HERMES, frozenset(("json_schema",))), (MISTRAL, frozenset(("json_schema",)))):
        with pytest.raises(UnsupportedConstraintError, match="f is strict"):
            enforcement(choice("auto", tools=strict), format, grammars, None)
    assert enforcement(choice(tools=strict), MISTRAL, ALL, None).grammar is not None
    with pytest.raises(UnsupportedConstraintError, match="no call can be forced"):
        enforcement(choice(), HERMES, frozenset(), None)


def test_a_call_or_an_answer_of_a_schema() -> None:
    answer = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "required": ["a"],
        "$defs": {"x": {"const": 5}},
    }
    held = enforcement(choice("auto"), JSON, ALL, JsonSchema.of(answer))
    judge = validator(held.grammar)
    assert judge.is_valid({"a": 5})
    assert judge.is_valid(call("f", {"value": 1}))
    assert not judge.is_valid({"a": 6})
    for wanted, format, wish in (
        (JsonSchema.of(answer), HERMES, "auto"),
        (Regex("a"), JSON, "auto"),
        (JsonSchema.of(answer), JSON, "required"),
    ):
        with pytest.raises(InvalidRequestError, match="remove one"):
            enforcement(choice(wish), format, ALL, wanted)


def mistral_tokenizer(*special: str) -> FastTokenizer:
    """Bytes, and these control tokens."""
    library = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.add_special_tokens(["<s>", "</s>", *special])
    size = 258 + len(special)
    return FastTokenizer(
        msgspec.structs.replace(
            byte_spec(),
            tokenizer_json=library.to_str(),
            num_tokens=size,
            vocab_size=size,
            special_token_ids=tuple(range(256, size)),
        )
    )


GOOD = '{"value": 3}'
LISTED = '[TOOL_CALLS] [{"name": "f", "arguments": {"value": 3}}]'
TWO = '[TOOL_CALLS] [{"name": "f", "arguments": {"value": 3}}, {"name": "g", "arguments": {"value": "x"}}]'
NAMED = f"[TOOL_CALLS]f[ARGS]{GOOD}"


@pytest.mark.parametrize("special", [("[TOOL_CALLS]", "[ARGS]"), ()])
@pytest.mark.parametrize(
    ("format", "parallel", "text", "is_taken"),
    [
        (MISTRAL, True, "Just text, with [brackets].", True),
        (MISTRAL, True, "", True),
        (MISTRAL, True, LISTED, True),
        (MISTRAL, True, f"One moment. {LISTED}", True),
        (MISTRAL, True, LISTED.replace("] [", "]["), True),
        (MISTRAL, True, TWO, True),
        (MISTRAL, False, TWO, False),
        (MISTRAL, True, LISTED.replace("3", '"three"'), False),
        (MISTRAL, True, LISTED.replace('"f"', '"h"'), False),
        (MISTRAL, True, "[TOOL_CALLS] no", False),
        (MISTRAL, True, f"{LISTED} and more", False),
        (MISTRAL_NAMED, True, "Just text.", True),
        (MISTRAL_NAMED, True, NAMED, True),
        (MISTRAL_NAMED, True, f'One moment.{NAMED}[TOOL_CALLS]g[ARGS]{{"value": "x"}}', True),
        (MISTRAL_NAMED, False, f"{NAMED}{NAMED}", False),
        (MISTRAL_NAMED, True, NAMED.replace("]f[", "]h["), False),
        (MISTRAL_NAMED, True, NAMED.replace("3", "true"), False),
        (MISTRAL_NAMED, True, "[TOOL_CALLS]f", False),
    ],
)
def test_free_text_or_calls_at_the_end(
    format: ToolFormat, parallel: bool, text: str, is_taken: bool, special: tuple[str, ...]
) -> None:
    tokenizer = mistral_tokenizer(*special)
    held = enforcement(choice("auto", parallel=parallel), format, ALL, None, tokenizer.special_tokens)
    assert isinstance(held.grammar, StructuralTag)
    compiled = EngineRouter(tokenizer).compile(held.grammar)
    assert takes(compiled, tokenizer.encode(text, allow_special=True), tokenizer) is is_taken
