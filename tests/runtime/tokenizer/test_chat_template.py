"""Messages in, the model's own format out; what is wrong with messages is named."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from ramet.runtime.protocol import InvalidRequestError, ModelLoadError
from ramet.runtime.tokenizer import ByteTokenizer, ChatTemplate, FastTokenizer, Spelling, TokenizerSpec

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = (
    "{% if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ ARGUMENTS }}]{% endfor %}"
    "{{ '\n' }}{% endfor %}"
)
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "čau <b>", "parameters": {"type": "object"}},
}


def template(source: str | None, **fields: Any) -> ChatTemplate:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    spec = TokenizerSpec(
        tokenizer_json="",
        num_tokens=0,
        vocab_size=0,
        spelling=Spelling("byte_level"),
        chat_template=source,
        special_token_names=names,
        **fields,
    )
    return ChatTemplate(spec, now=lambda: datetime(2026, 11, 30))


class TestRender:
    def test_smollm2(self, smollm2: FastTokenizer) -> None:
        text = smollm2.chat_template.render(USER)
        assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")

    def test_generation_prompt(self) -> None:
        assert template(CHATML).render(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"

    @pytest.mark.parametrize("trim", ["", " | trim"])
    def test_continue_the_final_message(self, trim: str) -> None:
        source = CHATML.replace("message.content", "message.content" + trim)
        messages = [*USER, {"role": "assistant", "content": "Once upon "}]
        text = template(source).render(messages, continue_final_message=True)
        assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce upon "

    def test_continuing_needs_the_content_to_be_shown(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"messages\[0\]"):
            template("fixed").render(USER, continue_final_message=True)

    def test_continuing_excludes_a_generation_prompt(self) -> None:
        with pytest.raises(InvalidRequestError, match="exclude") as error:
            template(CHATML).render(USER, continue_final_message=True, add_generation_prompt=True)
        assert error.value.field == "continue_final_message"

    def test_like_transformers(self, tiny_byte_level: LibraryTokenizer) -> None:
        from transformers import PreTrainedTokenizerFast

        source = """{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'tool' %}{% continue %}{% endif %}
    {% generation %}
    [{{ m.role }}|{{ m.content | trim }}]
    {% endgeneration %}
    {%- if loop.index0 > 2 %}{% break %}{% endif %}
{%- endfor %}
{{ {'a': 'ž<&>', 'b': [1, none]} | tojson }} {{ {'b': 1} | tojson(indent=2) }} {{ flag }}
{% if add_generation_prompt %}[assistant|{% endif %}
"""
        oracle = PreTrainedTokenizerFast(tokenizer_object=tiny_byte_level, bos_token="<s>", eos_token="</s>")
        oracle.chat_template = source
        messages = [
            {"role": role, "content": f" {role}\n"} for role in ("system", "user", "tool", "assistant", "user")
        ]
        for prompt in (True, False):
            wanted = oracle.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt, flag="on"
            )
            assert template(source).render(messages, add_generation_prompt=prompt, flag="on") == wanted

    def test_date(self) -> None:
        assert template("{{ strftime_now('%d %b %Y') }}").render(USER) == "30 Nov 2026"

    def test_named_template_for_tools(self) -> None:
        chosen = template("plain", named_chat_templates={"tool_use": "tools"})
        assert chosen.render(USER) == "plain"
        assert chosen.render(USER, [TOOL]) == "tools"

    def test_jinja_is_imported_late(self) -> None:
        code = (
            "import sys, ramet.runtime.tokenizer as t; t.ByteTokenizer(); "
            "print(sorted({'jinja2', 'torch', 'transformers'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


class TestMessages:
    def test_developer_is_system_where_the_template_knows_no_developer(self) -> None:
        message = [{"role": "developer", "content": "x"}]
        assert template("{{ messages[0].role }}").render(message) == "system"
        assert template("{{ messages[0].role }}{# developer #}").render(message) == "developer"

    def test_the_callers_messages_stay_as_they_are(self) -> None:
        parts = [{"type": "text", "text": "x"}]
        messages: list[dict[str, Any]] = [{"role": "developer", "content": parts}, {"role": "assistant"}]
        template(CHATML).render(messages, continue_final_message=True)
        assert messages == [
            {"role": "developer", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant"},
        ]

    def test_what_is_wrong_is_named(self) -> None:
        with pytest.raises(InvalidRequestError, match="'banana'") as error:
            template(CHATML).render([*USER, {"role": "banana", "content": "x"}])
        assert error.value.field == "messages[1].role"


def call(arguments: object) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        }
    ]


class TestTools:
    def test_definitions(self) -> None:
        text = template(WITH_TOOLS).render(USER, [TOOL])
        assert '"description": "čau <b>"' in text
        assert template(WITH_TOOLS).render(USER, []) == "user: hi\n"

    @pytest.mark.parametrize(
        "written",
        ["call.function.arguments | tojson", "'' + call.function.arguments", "call.function.arguments"],
    )
    def test_arguments_as_templates_write_them(self, written: str) -> None:
        chosen = template(WITH_TOOLS.replace("ARGUMENTS", written))
        for arguments in ('{"city": "Lima"}', {"city": "Lima"}):
            assert chosen.render(call(arguments)) == 'assistant: [f {"city": "Lima"}]\n'
        assert chosen.render(call("")) == chosen.render(call(None)) == "assistant: [f {}]\n"

    def test_arguments_as_a_mapping(self) -> None:
        source = WITH_TOOLS.replace(
            "ARGUMENTS", "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
        )
        source = source.replace("{{ {% for", "{% for").replace("{% endfor %} }}", "{% endfor %}")
        assert template(source).render(call('{"city": "Lima"}')) == "assistant: [f city=Lima]\n"

    def test_broken_arguments_stay_text(self) -> None:
        chosen = template(WITH_TOOLS.replace("ARGUMENTS", "call.function.arguments"))
        assert chosen.render(call("{city")) == "assistant: [f {city]\n"

    def test_a_template_without_tools_refuses_them(self) -> None:
        assert not template(CHATML).supports_tools
        with pytest.raises(InvalidRequestError, match="no place for tools") as error:
            template(CHATML).render(USER, [TOOL])
        assert error.value.field == "tools"
        with pytest.raises(InvalidRequestError, match="no place for tool calls") as error:
            template(CHATML).render(call("{}"))
        assert error.value.field == "messages[0].tool_calls"

    @pytest.mark.parametrize("tools", ["abc", 3, [3]])
    def test_malformed_tools(self, tools: Any) -> None:
        with pytest.raises(InvalidRequestError, match="tools"):
            template(WITH_TOOLS).render(USER, tools)

    def test_lone_surrogates(self) -> None:
        with pytest.raises(InvalidRequestError, match="surrogate") as error:
            template(WITH_TOOLS).render(USER, [{"function": {"description": "\ud800"}}])
        assert error.value.field == "tools[0].function.description"
        with pytest.raises(InvalidRequestError, match=r"^note\[0\]"):
            template(WITH_TOOLS).render(USER, note=["\ud800"])


class TestErrors:
    def test_no_template(self) -> None:
        assert not template(None).exists
        with pytest.raises(InvalidRequestError, match="no chat template"):
            template(None).render(USER)

    def test_what_a_template_objects_to(self) -> None:
        with pytest.raises(InvalidRequestError, match="roles must alternate") as error:
            template("{{ raise_exception('roles must alternate') }}").render(USER)
        assert error.value.field == "messages"

    def test_a_template_that_is_no_jinja(self) -> None:
        broken = template("x\n{% if %}")
        with pytest.raises(ModelLoadError, match="line 2"):
            broken.render(USER)

    @pytest.mark.parametrize("name", ["chat_template", "bos_token", "raise_exception", "strftime_now"])
    def test_reserved_names(self, name: str) -> None:
        variables: dict[str, Any] = {name: "x"}
        with pytest.raises(InvalidRequestError, match=name):
            template(CHATML).render(USER, None, **variables)

    def test_unknown_names_are_for_the_template_to_use_or_not(self) -> None:
        assert template(CHATML).render(USER, enable_thinking=False) == template(CHATML).render(USER)


def test_the_fake_has_one() -> None:
    messages: Sequence[Mapping[str, Any]] = USER
    assert ByteTokenizer().chat_template.render(messages) == "user: hi</s>\nassistant: "
