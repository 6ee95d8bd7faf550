"""From a conversation and its tools to token ids, and how the answer is to be read."""

from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol import GrammarSpec, InvalidRequestError, RametError
from ramet.runtime.protocol.reasoning import ReasoningFormat, reasoning_format
from ramet.runtime.server.chat_fields import ChatFields
from ramet.runtime.server.tools.call_parser import ToolCallParser
from ramet.runtime.server.tools.definitions import ToolChoice, ToolDefinition
from ramet.runtime.server.tools.enforcement import Enforcement, enforcement
from ramet.runtime.server.tools.formats import ToolFormat
from ramet.runtime.server.tools.prompting import describe, with_calls_as_content, with_description
from ramet.runtime.server.tools.schema_errors import about_tools
from ramet.runtime.tokenizer import Tokenizer, TokenizerSpec, encode_chat
from ramet.runtime.tokenizer.chat_messages import normalise_messages

_TAIL_TOKENS = 16
"""Enough of a prompt's end to see whether its template has begun the reasoning."""
_KWARGS = ("tools", "add_generation_prompt", "continue_final_message")
"""Of encode_chat, which have fields of their own."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and what its answers are made of."""

    token_ids: list[int]
    grammar: GrammarSpec | None
    tool_names: frozenset[str]
    enforcement: Enforcement | None
    """None: the model is not told of tools."""
    reasoning: ReasoningFormat | None
    tools: tuple[ToolDefinition, ...] = ()
    """Those that may be called."""

    def told(self, error: RametError, place: str) -> RametError:
        """An error of the tools' schemas as one of the request; see ``about_tools``."""
        return about_tools(error, self.tools, self.enforcement, place)

    @property
    def keeps_special_text(self) -> bool:
        """What marks calls or reasoning may be special tokens, whose text has to be seen."""
        return self.enforcement is not None or self.reasoning is not None

    def call_parser(self) -> ToolCallParser | None:
        """For one answer."""
        if self.enforcement is None:
            return None
        return ToolCallParser(
            self.enforcement.format,
            self.tool_names,
            forced=self.enforcement.forced,
            begins_inside=bool(self.enforcement.prompt_suffix),
            named=self.enforcement.named,
        )


@dataclass(frozen=True, slots=True)
class ChatModel:
    """What there is to know of a model to talk to it. Everything here may be used from any thread."""

    tokenizer: Tokenizer
    grammars: frozenset[str]
    tool_format: ToolFormat
    template: str
    """The sources of its chat templates."""
    reasoning: ReasoningFormat | None

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        spec: TokenizerSpec,
        grammars: frozenset[str],
        format: ToolFormat,
        reasoning: str,
    ) -> "ChatModel":
        """``reasoning``: a name of the reasoning formats, none, or auto.

        Raises:
            InvalidRequestError: there is no such format.
        """
        template = "\n".join([spec.chat_template or "", *spec.named_chat_templates.values()])
        return cls(tokenizer, grammars, format, template, _reasoning(reasoning, template))

    def prompt(self, fields: ChatFields, choice: ToolChoice, wanted: GrammarSpec | None) -> ChatPrompt:
        """Raises InvalidRequestError for what is wrong with the messages, the tools or the constraint."""
        messages = normalise_messages(fields.messages)
        shown = [tool.source for tool in choice.tools] or None
        enforced = None
        if choice.tools:
            enforced = enforcement(
                choice, self.tool_format, self.grammars, wanted, self.tokenizer.special_tokens
            )
            if not self.tokenizer.chat_template.supports_tools:
                messages = with_description(messages, describe(choice.tools, self.tool_format))
                shown = None
        if "tool_calls" not in self.template:
            messages = with_calls_as_content(messages, self.tool_format)
        token_ids = encode_chat(
            self.tokenizer,
            messages,
            shown,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            **self._template_kwargs(fields),
        )
        if enforced is not None and enforced.prompt_suffix:
            token_ids += self.tokenizer.encode(enforced.prompt_suffix, allow_special=True, at_start=False)
        return ChatPrompt(
            token_ids=token_ids,
            grammar=enforced.grammar if enforced is not None else wanted,
            tool_names=choice.names,
            enforcement=enforced,
            reasoning=self._reasoning_of(token_ids) if fields.separate_reasoning else None,
            tools=choice.tools,
        )

    def _template_kwargs(self, fields: ChatFields) -> dict[str, Any]:
        kwargs = dict(fields.chat_template_kwargs or {})
        for name in _KWARGS:
            if name in kwargs:
                raise InvalidRequestError(
                    f"chat_template_kwargs.{name} has a parameter of its own; give {name} beside it",
                    field=f"chat_template_kwargs.{name}",
                )
        effort = fields.reasoning_effort
        if effort is None:
            return kwargs
        if "reasoning_effort" in self.template:
            return {**kwargs, "reasoning_effort": effort}
        if effort == "none" and "enable_thinking" in self.template:
            return {**kwargs, "enable_thinking": False}
        raise InvalidRequestError(
            f"reasoning_effort is {effort!r}, which this model's chat template does not read; leave it out",
            field="reasoning_effort",
        )

    def _reasoning_of(self, token_ids: list[int]) -> ReasoningFormat | None:
        """With ``begins_inside`` where the prompt ends with the beginning of the reasoning."""
        if self.reasoning is None:
            return None
        tail = self.tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()
        if tail.endswith(self.reasoning.end):
            return None
        inside = self.reasoning.begins_inside or tail.endswith(self.reasoning.begin)
        return ReasoningFormat(self.reasoning.begin, self.reasoning.end, begins_inside=inside)


def _reasoning(wanted: str, template: str) -> ReasoningFormat | None:
    if wanted == "none":
        return None
    if wanted != "auto":
        return reasoning_format(wanted)
    known = (ReasoningFormat("<think>", "</think>"), ReasoningFormat("◁think▷", "◁/think▷"))
    return next((one for one in known if one.begin in template or one.end in template), None)
