"""How models write tool calls. Which one a model uses is seen in its chat template."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.runtime.protocol import InvalidRequestError

if TYPE_CHECKING:
    from ramet.runtime.tokenizer import TokenizerSpec


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way to write calls as text. The calls themselves are JSON objects with a name and arguments."""

    name: str
    begin: str = ""
    """What calls begin with; empty: an answer that is JSON from its first character is calls."""
    end: str = ""
    """What follows a call; empty: nothing does."""
    arguments_key: str = "arguments"
    is_list: bool = False
    """Several calls are one list."""
    named_before: str = ""
    """Between a call's name and its arguments, where these do not form one object."""


HERMES = ToolFormat("hermes", begin="<tool_call>", end="</tool_call>")
"""Nous Hermes 2 Pro's, and Qwen's: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` a call."""
LLAMA3 = ToolFormat("llama3", arguments_key="parameters")
"""Llama 3.1's JSON form: ``{"name": ..., "parameters": {...}}``, and nothing else."""
MISTRAL = ToolFormat("mistral", begin="[TOOL_CALLS]", is_list=True)
"""Mistral's: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``."""
MISTRAL_NAMED = ToolFormat("mistral", begin="[TOOL_CALLS]", named_before="[ARGS]")
"""The same of tokenizers from version 11 on: ``[TOOL_CALLS]name[ARGS]{...}`` a call."""
JSON = ToolFormat("json", is_list=True)
"""For models that were taught none: a call, or a list of calls, as JSON, and nothing else."""

FORMATS = {one.name: one for one in (HERMES, LLAMA3, MISTRAL, JSON)}


def tool_format(wanted: str, spec: "TokenizerSpec") -> ToolFormat:
    """The format that ``wanted`` names; auto: the one in the model's chat template.

    Raises:
        InvalidRequestError: there is no format of that name.
    """
    source = "\n".join([spec.chat_template or "", *spec.named_chat_templates.values()])
    if wanted == "auto":
        wanted = _format_in(source)
    if wanted not in FORMATS:
        raise InvalidRequestError(
            f"tool_format is {wanted!r}; it must be auto, {', '.join(FORMATS)}", field="tool_format"
        )
    if wanted == "mistral" and MISTRAL_NAMED.named_before in source:
        return MISTRAL_NAMED
    return FORMATS[wanted]


def _format_in(source: str) -> str:
    if HERMES.begin in source:
        return HERMES.name
    if MISTRAL.begin in source:
        return MISTRAL.name
    if '"parameters": ' in source and ("ipython" in source or "<|python_tag|>" in source):
        return LLAMA3.name
    return JSON.name
