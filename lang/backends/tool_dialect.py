"""How a model spells calls of tools: in its template's own form where that can be enforced, else in JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.lang.backends.base import ToolCall, ToolOffer, ToolSpec
from ramet.lang.backends.tool_json import calls_schema
from ramet.lang.errors import GenerationError
from ramet.runtime.protocol import GrammarSpec, InvalidRequestError, JsonSchema, StructuralTag
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.tokenizer.private_text import private_text

_BEGUN_ANSWER = re.compile(r'\s*\{\s*"answer"\s*:\s*"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)')
"""An answer in JSON as far as it goes, but for an escape that has not ended."""
_FIRST_KEY = re.compile(r'\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*"?', re.DOTALL)
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_CHARACTER = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_PROBE_TOOL = "probe_tool"
_PROBE_ARGUMENTS = {"probe_name": "probe_value"}


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """The whole answer is JSON: a call, or an answer. The model is told so in its system message."""

    def grammar(self, offer: ToolOffer) -> GrammarSpec:
        may_answer = offer.choice in ("auto", "none")
        return JsonSchema.of(calls_schema(_callable(offer), may_answer=may_answer))

    def read(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """The answer's text, and the calls in it as (name, arguments). Of an answer that was cut there is what
        there is; raises GenerationError where a call was."""
        try:
            document = json.loads(text)
        except ValueError:
            begun = _BEGUN_ANSWER.match(text)
            if begun is None:
                raise _cut(text) from None
            return _decoded(begun[1]), []
        if "answer" in document:
            return _whole_characters(str(document["answer"])), []
        return "", [(str(document["name"]), _json(document["arguments"]))]

    def reader(self) -> "AnswerReader":
        return AnswerReader(self, JsonAnswer())

    def spell(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f'{{"name": {_json(call.name)}, "arguments": {call.arguments}}}' for call in calls)


@dataclass(frozen=True, slots=True)
class TemplateDialect:
    """A call is ``opening`` name ``between`` arguments ``closing``, and other text is answer."""

    opening: str
    between: str
    closing: str

    def grammar(self, offer: ToolOffer) -> GrammarSpec | None:
        tools = _callable(offer)
        if not tools:
            return None
        tags = [
            {
                "begin": f"{self.opening}{tool.name}{self.between}",
                "content": {"type": "json_schema", "json_schema": tool.parameters},
                "end": self.closing,
            }
            for tool in tools
        ]
        format = {
            "type": "triggered_tags",
            "triggers": [self.opening],
            "tags": tags,
            "at_least_one": offer.choice != "auto",
        }
        return StructuralTag(_json({"type": "structural_tag", "format": format}))

    def read(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """As JsonDialect.read."""
        answer, found, rest = text.partition(self.opening)
        calls: list[tuple[str, str]] = []
        while found:
            name, has_arguments, after = rest.partition(self.between)
            try:
                if not has_arguments:
                    raise ValueError("no arguments")
                _, end = json.JSONDecoder().raw_decode(after)
            except ValueError:
                raise _cut(self.opening + rest) from None
            calls.append((name, after[:end]))
            more, found, rest = after[end:].removeprefix(self.closing).partition(self.opening)
            answer += more
        return (answer.rstrip() if calls else answer), calls

    def reader(self) -> "AnswerReader":
        return AnswerReader(self, FreeAnswer(self.opening))

    def spell(self, calls: Sequence[ToolCall]) -> str:
        spelled = (f"{self.opening}{call.name}{self.between}{call.arguments}{self.closing}" for call in calls)
        return "\n".join(spelled)


ToolDialect = JsonDialect | TemplateDialect


class JsonAnswer:
    """What is certain of the answer while it comes as JSON."""

    def __init__(self) -> None:
        self.is_answer = False
        self._unread = ""
        self._is_call = False

    def push(self, text: str) -> str:
        self._unread = "" if self._is_call else self._unread + text
        if not self.is_answer:
            self._begin()
        if not self.is_answer:
            return ""
        raw = _CHARACTERS.match(self._unread)
        assert raw is not None
        half = _HALF_CHARACTER.search(raw[0])
        end = raw.end() if half is None else half.start()
        found, self._unread = self._unread[:end], self._unread[end:]
        return _decoded(found)

    def _begin(self) -> None:
        key = _FIRST_KEY.match(self._unread)
        if key is None:
            return
        self._is_call = key[1] != "answer"
        if not self._is_call and key[0].endswith('"'):
            self.is_answer, self._unread = True, self._unread[key.end() :]


class FreeAnswer:
    """What is certain of the answer while it comes as text, in which calls may stand behind ``opening``."""

    is_answer = False
    """A call may always come."""

    def __init__(self, opening: str) -> None:
        self._opening = opening
        self._held = ""
        self._is_called = False

    def push(self, text: str) -> str:
        if self._is_called:
            return ""
        known = self._held + text
        answer, called, _ = known.partition(self._opening)
        self._is_called = bool(called)
        certain = answer if called else answer[: _without_beginning(answer, self._opening)]
        # White space before a call is no part of the text.
        certain = certain.rstrip()
        self._held = known[len(certain) :]
        return certain


class AnswerReader:
    """Tells text from calls in an answer that is still being generated. What it gives concatenates to what the
    dialect reads in the whole."""

    def __init__(self, dialect: ToolDialect, answer: JsonAnswer | FreeAnswer) -> None:
        self._dialect = dialect
        self._answer = answer
        self._parts: list[str] = []
        self._given: list[str] = []

    @property
    def is_answer(self) -> bool:
        """No call can come any more."""
        return self._answer.is_answer

    def push(self, text: str) -> str:
        """How the answer's text goes on, as far as that cannot be a call or the beginning of one."""
        self._parts.append(text)
        certain = self._answer.push(text)
        self._given.append(certain)
        return certain

    def finish(self) -> tuple[str, list[tuple[str, str]]]:
        """The rest of the text, and the calls as (name, arguments). Raises GenerationError: one was cut."""
        text, calls = self._dialect.read("".join(self._parts))
        return text.removeprefix("".join(self._given)), calls


def dialect_of(tokenizer: Tokenizer, *, structural_tags: bool) -> ToolDialect:
    """``structural_tags``: the engine holds a model to a form that stands within free text.

    The template's own form is found by letting it render a call. It is used where it is a name and a JSON
    object between fixed texts, spelled with ordinary tokens.
    """
    template = tokenizer.chat_template
    if not (structural_tags and template.supports_tools):
        return JsonDialect()
    tool = {"name": _PROBE_TOOL, "description": "", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": tool}]
    call = {"name": _PROBE_TOOL, "arguments": _PROBE_ARGUMENTS}
    mark = private_text()
    user = {"role": "user", "content": "?"}
    said = {"role": "assistant", "content": mark}
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00000", "type": "function", "function": call}],
    }
    try:
        plain = template.render([user, said], tools, add_generation_prompt=False)
        text = template.render([user, calling], tools, add_generation_prompt=False)
    except InvalidRequestError:
        return JsonDialect()
    found = _template_dialect(plain.partition(mark), text)
    if found is None or any(_has_special(tokenizer, part) for part in (found.opening, found.closing)):
        return JsonDialect()
    return found


def _template_dialect(plain: tuple[str, str, str], text: str) -> TemplateDialect | None:
    head, mark, tail = plain
    if not mark or not text.startswith(head) or not text.endswith(tail):
        return None
    spelled = text[len(head) : len(text) - len(tail)]
    opening, found, rest = spelled.partition(_PROBE_TOOL)
    start = rest.find("{")
    if not found or start < 0 or not opening.strip():
        return None
    try:
        arguments, end = json.JSONDecoder().raw_decode(rest[start:])
    except ValueError:
        return None
    if arguments != _PROBE_ARGUMENTS:
        return None
    return TemplateDialect(opening, rest[:start], rest[start + end :])


def tool_calls(calls: Sequence[tuple[str, str]], round_number: int) -> tuple[ToolCall, ...]:
    """With ids that no other call of the conversation has. ``round_number``: of the turn that calls."""
    return tuple(
        ToolCall(id=f"call_{round_number}_{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(calls)
    )


def _callable(offer: ToolOffer) -> list[ToolSpec]:
    if offer.choice == "none":
        return []
    if offer.choice in ("auto", "required"):
        return list(offer.tools)
    return [tool for tool in offer.tools if tool.name == offer.choice]


def _has_special(tokenizer: Tokenizer, text: str) -> bool:
    """Whether some of it is a control token, which no grammar over text lets through."""
    return next(iter(tokenizer.special_text.spans(text)), None) is not None


def _decoded(raw: str) -> str:
    """The text that stands so in JSON."""
    return _whole_characters(str(json.loads(f'"{raw}"')))


def _whole_characters(text: str) -> str:
    """Without halves of characters, of which the others are missing."""
    return text.encode(errors="ignore").decode()


def _without_beginning(text: str, opening: str) -> int:
    """The length of the text without what at its end may be the beginning of ``opening``."""
    longest = min(len(text), len(opening) - 1)
    return len(text) - next(size for size in range(longest, -1, -1) if text.endswith(opening[:size]))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> GenerationError:
    return GenerationError(f"the call {text[:80]!r} is not whole; raise max_tokens")
