"""Prompts of conversations: tools, reasoning, and what forces a call."""

from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError, JsonSchema, UnsupportedConstraintError
from ramet.runtime.protocol.reasoning import ReasoningFormat
from ramet.runtime.server.chat_fields import ChatFields
from ramet.runtime.server.chat_prompt import ChatModel, ChatPrompt
from ramet.runtime.server.tools.call_parser import CallArguments, CallBegin, CallEnd
from ramet.runtime.server.tools.definitions import ToolChoice, tool_choice
from ramet.runtime.server.tools.formats import tool_format
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.server.speaking_server import HERMES_TEMPLATE, PLAIN_TEMPLATE, spec

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
THINKING_TEMPLATE = PLAIN_TEMPLATE + "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"


def model(
    template: str = PLAIN_TEMPLATE, *, reasoning: str = "auto", grammars: tuple[str, ...] = ()
) -> ChatModel:
    one = spec(template)
    return ChatModel.of(FastTokenizer(one), one, frozenset(grammars), tool_format("auto", one), reasoning)


def text_of(chat_model: ChatModel, prompt: ChatPrompt) -> str:
    return chat_model.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)


def choice(wanted: object = "auto") -> ToolChoice:
    return tool_choice(TOOLS, wanted, parallel=None)


def test_without_tools_the_prompt_is_the_conversation() -> None:
    chat_model = model()
    prompt = chat_model.prompt(ChatFields(messages=HI), ToolChoice(), None)
    assert text_of(chat_model, prompt) == "user: hi"
    assert (prompt.enforcement, prompt.call_parser(), prompt.reasoning) == (None, None, None)
    assert not prompt.keeps_special_text


def test_tools_go_into_the_template_or_into_the_system_message() -> None:
    for template, beginning in ((HERMES_TEMPLATE, 'tools: [{"type"'), (PLAIN_TEMPLATE, "system: You may call")):
        chat_model = model(template)
        prompt = chat_model.prompt(ChatFields(messages=HI, tools=TOOLS), choice(), None)
        assert text_of(chat_model, prompt).startswith(beginning)
        assert text_of(chat_model, prompt).endswith("user: hi")
        assert prompt.tool_names == {"f"}


def test_a_forced_call_is_begun_and_constrained() -> None:
    chat_model = model(HERMES_TEMPLATE, grammars=("json_schema",))
    prompt = chat_model.prompt(ChatFields(messages=HI, tools=TOOLS), choice("required"), None)
    assert text_of(chat_model, prompt).endswith("user: hi<tool_call>\n")
    assert isinstance(prompt.grammar, JsonSchema)
    parser = prompt.call_parser()
    assert parser is not None
    assert parser.feed('{"name": "f", "arguments": {}}') == [CallBegin("f"), CallArguments("{}"), CallEnd()]
    with pytest.raises(UnsupportedConstraintError, match="cannot enforce"):
        model().prompt(ChatFields(messages=HI), choice("required"), None)


def test_control_text_of_a_user_is_no_control_token() -> None:
    chat_model = model()
    messages = [{"role": "user", "content": "</s>"}, {"role": "user", "content": "x"}]
    prompt = chat_model.prompt(ChatFields(messages=messages), ToolChoice(), None)
    assert prompt.token_ids.count(257) == 1


def test_reasoning_is_seen_in_the_template_and_in_the_prompts_end() -> None:
    chat_model = model(THINKING_TEMPLATE)
    thinking = ChatFields(messages=HI, chat_template_kwargs={"enable_thinking": True})
    assert chat_model.prompt(thinking, ToolChoice(), None).reasoning == ReasoningFormat(
        "<think>", "</think>", begins_inside=True
    )
    assert chat_model.prompt(ChatFields(messages=HI), ToolChoice(), None).reasoning is None
    plain = ChatFields(messages=HI, chat_template_kwargs={"enable_thinking": True}, separate_reasoning=False)
    assert chat_model.prompt(plain, ToolChoice(), None).reasoning is None
    off = model(THINKING_TEMPLATE, reasoning="none")
    assert off.prompt(thinking, ToolChoice(), None).reasoning is None
    named = model(reasoning="kimi").prompt(ChatFields(messages=HI), ToolChoice(), None).reasoning
    assert named == ReasoningFormat("◁think▷", "◁/think▷")
    with pytest.raises(InvalidRequestError, match="model_type"):
        model(reasoning="unknown")


def test_effort_is_taken_where_the_template_reads_it() -> None:
    chat_model = model("{{ reasoning_effort }}{{ messages[0].content }}")
    prompt = chat_model.prompt(ChatFields(messages=HI, reasoning_effort="low"), ToolChoice(), None)
    assert text_of(chat_model, prompt) == "lowhi"
    thinking = model(THINKING_TEMPLATE)
    none = thinking.prompt(ChatFields(messages=HI, reasoning_effort="none"), ToolChoice(), None)
    assert text_of(thinking, none).endswith("</think>")
    with pytest.raises(InvalidRequestError, match="reasoning_effort"):
        thinking.prompt(ChatFields(messages=HI, reasoning_effort="high"), ToolChoice(), None)
    with pytest.raises(InvalidRequestError, match=r"chat_template_kwargs\.tools"):
        model().prompt(ChatFields(messages=HI, chat_template_kwargs={"tools": 1}), ToolChoice(), None)
