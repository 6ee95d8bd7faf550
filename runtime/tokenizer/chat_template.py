"""Chat messages to the text that the model was trained on, by the model's own template."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.tokenizer.chat_messages import Message, checked_copy, normalise_messages
from ramet.runtime.tokenizer.private_text import private_text
from ramet.runtime.tokenizer.spec import TokenizerSpec

Renderer = Callable[[dict[str, Any]], str]
"""Variables of the template -> the rendered text."""

_RESERVED = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "raise_exception",
    "strftime_now",
)


class ChatTemplate:
    """The chat template of a tokenizer. Thread-safe. Templates compile when first used."""

    def __init__(self, spec: TokenizerSpec, *, now: Callable[[], datetime] = datetime.now) -> None:
        """``now`` is what templates that print today's date are told."""
        self._sources = dict(spec.named_chat_templates)
        if spec.chat_template is not None:
            self._sources["default"] = spec.chat_template
        self._special_token_names = spec.special_token_names
        self._now = now
        self._compiled: dict[str, Renderer] = {}

    @property
    def exists(self) -> bool:
        return bool(self._sources)

    @property
    def supports_tools(self) -> bool:
        """Whether the template has a place for tool definitions."""
        return "tool_use" in self._sources or self._mentions("tools")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The prompt as text, control tokens written out.

        ``add_generation_prompt`` opens the assistant's turn at the end (default: unless the final message is
        continued). ``continue_final_message`` leaves the last message's turn open, right after its content.
        ``template_kwargs`` go to the template, which may use them or not.

        A system message is what a developer message becomes where the template does not know that role.

        Raises:
            InvalidRequestError: names the part of ``messages`` or ``tools`` that is wrong, or says what the
                template objected to.
            ModelLoadError: the template is not valid Jinja.
        """
        return self.render_with(
            lambda part: part,
            messages,
            tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    def render_with(
        self,
        rewrite: Callable[[Any], Any],
        messages: object,
        tools: object,
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """``render``, with everything that the caller wrote passed through ``rewrite`` once it is
        normalised."""
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        elif add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "add_generation_prompt and continue_final_message exclude each other; give one of them",
                field="continue_final_message",
            )
        for name in template_kwargs:
            if name in _RESERVED or name in self._special_token_names:
                raise InvalidRequestError(f"{name} cannot be given to the chat template", field=name)
        renderer = self._renderer(has_tools=bool(tools))
        conversation = self._conversation(normalise_messages(messages), rewrite)
        seam = private_text() if continue_final_message else ""
        conversation[-1]["content"] += seam
        text = renderer(
            {
                **self._special_token_names,
                **{name: rewrite(checked_copy(value, name)) for name, value in template_kwargs.items()},
                "messages": conversation,
                "tools": rewrite(self._checked_tools(tools)),
                "add_generation_prompt": add_generation_prompt,
            },
        )
        return _cut(text, seam, len(conversation) - 1) if seam else text

    def _conversation(self, messages: list[Message], rewrite: Callable[[Any], Any]) -> list[Message]:
        knows_developer = self._mentions("developer")
        knows_tool_calls = self._mentions("tool_calls")
        conversation = []
        for i, message in enumerate(messages):
            if message["role"] == "developer" and not knows_developer:
                message["role"] = "system"
            if message.get("tool_calls") and not knows_tool_calls:
                raise InvalidRequestError(
                    f"messages[{i}].tool_calls: this model's chat template has no place for tool calls; "
                    "write them into the content",
                    field=f"messages[{i}].tool_calls",
                )
            conversation.append({key: rewrite(value) for key, value in message.items() if key != "role"})
            conversation[-1]["role"] = message["role"]
        return conversation

    def _checked_tools(self, tools: object) -> list[Any] | None:
        if not tools:
            return None
        if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
            raise InvalidRequestError(
                f"tools is {type(tools).__name__}; it must be a list of tools", field="tools"
            )
        for i, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise InvalidRequestError(
                    f"tools[{i}] must be an object that describes a tool", field=f"tools[{i}]"
                )
        if not self.supports_tools:
            raise InvalidRequestError(
                "tools: this model's chat template has no place for tools, so the model would not see them; "
                "describe them in a system message",
                field="tools",
            )
        return [checked_copy(tool, f"tools[{i}]") for i, tool in enumerate(tools)]

    def _mentions(self, word: str) -> bool:
        return any(word in source for source in self._sources.values())

    def _renderer(self, *, has_tools: bool) -> Renderer:
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot take messages; give the prompt as text",
                field="messages",
            )
        if name not in self._compiled:
            self._compiled[name] = _compile(self._sources[name], self._now)
        return self._compiled[name]


def _compile(source: str, now: Callable[[], datetime]) -> Renderer:
    # Imported here: jinja2 takes a while, and a process that only completes text never needs it.
    from ramet.runtime.tokenizer.template_environment import compile_template

    return compile_template(source, now)


def _cut(text: str, seam: str, last: int) -> str:
    head, found, _ = text.rpartition(seam)
    if not found:
        raise InvalidRequestError(
            f"messages[{last}]: the model's chat template does not show this message's content, so it "
            "cannot be continued",
            field=f"messages[{last}]",
        )
    return head
