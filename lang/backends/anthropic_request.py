"""Requests of Anthropic's Messages API, from what a program asks."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ramet.lang.backends.answer_text import Reading
from ramet.lang.backends.base import ToolOffer
from ramet.lang.backends.openai_constraints import Constraint, object_constraint
from ramet.lang.backends.openai_messages import Message, chat_messages
from ramet.lang.backends.openai_request import is_strict
from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import SamplingParams

MESSAGES_ROUTE = "/v1/messages"
CACHED = {"cache_control": {"type": "ephemeral"}}
MAX_STARTS = 32
_DEFAULTS = SamplingParams()

Block = dict[str, Any]


class SharedStarts:
    """Turns that several prompts are known to begin with; the latest MAX_STARTS of them."""

    def __init__(self) -> None:
        self._starts: list[list[Message]] = []

    def add(self, transcript: Transcript) -> None:
        """Its whole turns."""
        start = _whole_turns(transcript)
        if start and start not in self._starts:
            self._starts = [*self._starts, start][-MAX_STARTS:]

    def longest(self, turns: Sequence[Message]) -> int:
        """How many of the turns are such a start."""
        return max((len(start) for start in self._starts if list(turns[: len(start)]) == start), default=0)


@dataclass(frozen=True, slots=True)
class Correspondent:
    """Whom requests are for. ``name``: as errors call it."""

    name: str
    model: str
    default_max_tokens: int
    """For calls without max_tokens, which the API wants in any case."""
    thinking: Mapping[str, Any] | None
    caches_prompts: bool
    shared_starts: SharedStarts
    extra_body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Letter:
    """A request, and how its answer's text is to be read."""

    body: dict[str, Any]
    reading: Reading
    hidden_space: str
    """White space at the end of the assistant's turn so far, which the API does not take. An answer that begins
    with it goes on behind it."""


def letter(
    whom: Correspondent, transcript: Transcript, params: SamplingParams, offer: ToolOffer | None
) -> Letter:
    """The request for an answer, streamed.

    Raises:
        UnsupportedError: the API has no way to say a part of it.
    """
    held = Constraint() if params.grammar is None else object_constraint(params.grammar, whom.name)
    messages, goes_on = chat_messages(transcript, whom.name)
    system, turns = _system(whom, messages), _turns(messages)
    if not turns:
        raise UnsupportedError(
            f"{whom.name} answers a user, and there is no user's turn yet; say user(...) first"
        )
    hidden = _hide_space(turns) if goes_on else ""
    # A stop of white space alone is refused there.
    server_stops = held.wrapping is None and all(stop.strip() for stop in params.stop)
    body: dict[str, Any] = {
        "model": whom.model,
        "max_tokens": params.max_tokens or whom.default_max_tokens,
        "system": system or None,
        "messages": turns,
        "stop_sequences": list(params.stop) if server_stops and params.stop else None,
        **{name: getattr(params, name) for name in ("temperature", "top_p", "top_k") if _is_said(params, name)},
        **_format(held),
        **_tools(whom, turns, offer),
        "thinking": whom.thinking,
        "stream": True,
    }
    if whom.caches_prompts:
        before_fork = Transcript(transcript.pieces[: transcript.num_shared])
        _mark_cached(body, max(len(_whole_turns(before_fork)), whom.shared_starts.longest(turns)))
    body.update(whom.extra_body)
    body = {key: value for key, value in body.items() if value is not None}
    return Letter(body, Reading.of(params, held.wrapping, server_stops=server_stops), hidden)


def _is_said(params: SamplingParams, name: str) -> bool:
    return bool(getattr(params, name) != getattr(_DEFAULTS, name))


def _format(held: Constraint) -> dict[str, Any]:
    if "response_format" not in held.fields:
        return {}
    schema = held.fields["response_format"]["json_schema"]["schema"]
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _system(whom: Correspondent, messages: Sequence[Message]) -> list[Block]:
    """The blocks of the system prompt: what is said before the first other turn."""
    roles = [message["role"] in ("system", "developer") for message in messages]
    count = roles.index(False) if False in roles else len(roles)
    if any(roles[count:]):
        raise UnsupportedError(
            f"{whom.name} takes a system message at the beginning only, and one stands behind other turns; say "
            "it in the user's turn"
        )
    return [block for message in messages[:count] for block in _blocks(message["content"])]


def _turns(messages: Sequence[Message]) -> list[Message]:
    """The user's and the assistant's turns; those of one role that follow one another are one."""
    turns = [
        {"role": "assistant" if message["role"] == "assistant" else "user", "content": _content(message)}
        for message in messages
        if message["role"] not in ("system", "developer")
    ]
    merged = [
        {"role": role, "content": [block for turn in group for block in turn["content"]]}
        for role, group in groupby(turns, key=lambda turn: turn["role"])
    ]
    return [turn for turn in merged if turn["content"]]


def _content(message: Message) -> list[Block]:
    if message["role"] == "tool" and "tool_call_id" in message:
        return [
            {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": _blocks(message["content"]),
            }
        ]
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    return _blocks(message["content"]) + calls


def _blocks(content: str | Sequence[Mapping[str, Any]]) -> list[Block]:
    """An empty text is no block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [
        _image(part["image_url"]["url"])
        if part["type"] == "image_url"
        else {"type": "text", "text": part["text"]}
        for part in content
    ]


def _image(url: str) -> Block:
    match = re.fullmatch(r"data:([^;,]+);base64,(.*)", url, re.DOTALL)
    if match is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}


def _hide_space(turns: list[Message]) -> str:
    """Takes white space off the end of the last turn, and gives it back."""
    blocks = turns[-1]["content"]
    if blocks[-1]["type"] != "text":
        return ""
    text = blocks[-1]["text"]
    kept = text.rstrip()
    blocks[-1]["text"] = kept
    if not kept:
        blocks.pop()
    if not blocks:
        turns.pop()
    return str(text[len(kept) :])


def _tools(whom: Correspondent, turns: Sequence[Message], offer: ToolOffer | None) -> dict[str, Any]:
    used = sorted({block["name"] for turn in turns for block in turn["content"] if block["type"] == "tool_use"})
    if offer is None and not used:
        return {}
    if whom.thinking is not None and whom.thinking.get("type") != "disabled":
        raise UnsupportedError(
            f"{whom.name} wants its thinking back with the results of tools, which programs do not carry; use "
            "tools without thinking"
        )
    if offer is None:
        # Earlier turns have called them, and the API wants to know of what; this call offers none.
        schema = {"type": "object"}
        return {
            "tools": [{"name": name, "input_schema": schema} for name in used],
            "tool_choice": {"type": "none"},
        }
    tools = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.parameters,
            **({"strict": True} if is_strict(tool.parameters) else {}),
        }
        for tool in offer.tools
    ]
    kinds = {"auto": "auto", "required": "any", "none": "none"}
    choice: dict[str, Any] = {"type": kinds.get(offer.choice, "tool")}
    if choice["type"] == "tool":
        choice["name"] = offer.choice
    return {"tools": tools, "tool_choice": choice}


def _whole_turns(transcript: Transcript) -> list[Message]:
    """Those of the turns that have ended."""
    kinds = [piece.kind for piece in transcript.pieces]
    messages: list[Message] = [dict(message) for message in transcript.messages()]
    return _turns(messages[:-1] if kinds.count("begin") > kinds.count("end") else messages)


def _mark_cached(body: dict[str, Any], num_shared: int) -> None:
    """Marks where others will go on from: the end of the system prompt, of what branches share, and of all
    before the answer. The API keeps what it has computed up to there for some minutes; three marks of its four
    at most."""
    turns = body["messages"]
    marked = [body["system"]] if body["system"] else []
    asked = [turn["content"] for turn in turns if turn["role"] == "user"]
    marked += [turn["content"] for turn in turns[:num_shared][-1:]]
    marked += asked[-1:]
    for blocks in marked:
        blocks[-1].update(CACHED)
