from dataclasses import replace
from typing import Any

import pytest

from ramet.lang.backends.base import ToolOffer, ToolSpec
from ramet.lang.backends.openai_flavours import FLAVOURS
from ramet.lang.backends.openai_request import Addressee, generation, is_strict, logprobs_fields
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import Choice, ProgramTag, SamplingParams
from tests.lang.backends.test_openai_messages import transcript


def whom(flavour: str, **options: Any) -> Addressee:
    return replace(Addressee("s", "m", FLAVOURS[flavour], True, {}), **options)


def body(
    flavour: str, params: SamplingParams, offer: ToolOffer | None = None, **options: Any
) -> dict[str, Any]:
    made = transcript(("user", "a"))
    return generation(
        whom(flavour, **options), made, params, tag=ProgramTag(program_id="p"), priority=0, offer=offer
    ).body


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_field_reaches_the_server_or_is_not_claimed(flavour: str) -> None:
    unusual = SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=0.75,
        repetition_penalty=1.5,
        logit_bias={3: 4.0},
        seed=11,
        n=2,
        stop=("x",),
        stop_token_ids=(13,),
        stop_regex=("y",),
        include_stop=True,
        ignore_eos=True,
        skip_special_tokens=False,
        close_on_length=True,
    )
    asked = body(flavour, unusual)
    for name, key in FLAVOURS[flavour].fields.items():
        value = getattr(unusual, name)
        expected = list(value) if isinstance(value, tuple) else value
        assert asked[key] == ({"3": 4.0} if name == "logit_bias" else expected), name


def test_defaults_are_the_programs_and_not_the_models() -> None:
    for flavour in ("vllm", "sglang", "ramet"):
        asked = body(flavour, SamplingParams())
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (1.0, 1.0, -1)
        assert (asked["min_p"], asked["repetition_penalty"]) == (0.0, 1.0)
    assert "temperature" not in body("openai", SamplingParams())


def test_until_the_context_is_full() -> None:
    assert not {"max_tokens", "max_completion_tokens"} & body("openai", SamplingParams(max_tokens=None)).keys()


def test_salt_and_extra_fields() -> None:
    asked = body("sglang", SamplingParams(), cache_salt="s", extra_body={"rid": "r", "top_k": None})
    assert (asked["extra_key"], asked["rid"]) == ("s", "r")
    assert "top_k" not in asked


def test_whose_call_it_is() -> None:
    assert body("ramet", SamplingParams())["program"] == ProgramTag(program_id="p")
    assert "program" not in body("vllm", SamplingParams())


def test_logprobs() -> None:
    assert logprobs_fields(whom("openai"), None) == {}
    assert logprobs_fields(whom("openai"), 0) == {"logprobs": True, "top_logprobs": 0}
    assert logprobs_fields(whom("openai", is_chat=False), 5) == {"logprobs": 5}
    assert logprobs_fields(whom("vllm"), 1)["return_tokens_as_token_ids"] is True
    with pytest.raises(UnsupportedError, match="5 logprobs a token at most; logprobs is 6"):
        logprobs_fields(whom("openai", is_chat=False), 6)


def test_stops_of_a_wrapped_answer_are_not_the_servers() -> None:
    asked = body("openai", SamplingParams(grammar=Choice(("a", "b")), stop=("x",)))
    assert "stop" not in asked
    assert asked["response_format"]["type"] == "json_schema"
    with pytest.raises(UnsupportedError, match="leave logit_bias out"):
        body("openai", SamplingParams(grammar=Choice(("a",)), logit_bias={1: 1.0}))


STRICT = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
LOOSE = {**STRICT, "required": []}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ("f", {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools(choice: str, said: object) -> None:
    tools = (ToolSpec(name="f", description="F", parameters=STRICT), ToolSpec(name="g", parameters=LOOSE))
    asked = body("openai", SamplingParams(), ToolOffer(tools=tools, choice=choice))
    assert asked["tool_choice"] == said
    assert [tool["function"].get("strict") for tool in asked["tools"]] == [True, None]
    assert asked["tools"][0]["function"]["parameters"] == STRICT


def test_strict_schemas() -> None:
    assert is_strict(STRICT)
    assert is_strict({**STRICT, "properties": {"a": {"type": "array", "items": STRICT}}})
    assert not is_strict({**STRICT, "properties": {"a": {"type": "array", "items": LOOSE}}})
    assert not is_strict({**STRICT, "additionalProperties": True})
    assert not is_strict({**STRICT, "properties": {"a": {"type": "string", "default": "x"}}})


def test_adapters_go_by_each_servers_own_name() -> None:
    assert body("vllm", SamplingParams(), adapter="sql")["model"] == "sql"
    asked = body("sglang", SamplingParams(), adapter="sql")
    assert (asked["model"], asked["lora_path"]) == ("m", "sql")
    assert "lora_path" not in body("sglang", SamplingParams())
    assert {name for name, flavour in FLAVOURS.items() if flavour.lora} == {"vllm", "sglang"}
