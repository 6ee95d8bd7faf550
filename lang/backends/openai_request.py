"""Requests of OpenAI's API, from what a program asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.lang.backends.answer_text import Reading
from ramet.lang.backends.base import ToolOffer
from ramet.lang.backends.openai_constraints import Constraint, constraint
from ramet.lang.backends.openai_flavours import FULLY_SPECIFIED, Flavour
from ramet.lang.backends.openai_messages import chat_messages, prompt_text, without_bare_tool_messages
from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import UnsupportedError
from ramet.runtime.protocol import ProgramTag, SamplingParams

CHAT_ROUTE = "/chat/completions"
COMPLETIONS_ROUTE = "/completions"
_DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whom requests are for. ``name``: as errors call it. ``extra_body``: put into every request as it is; a
    field of None takes that field out."""

    name: str
    model: str
    flavour: Flavour
    is_chat: bool
    extra_body: Mapping[str, Any] = field(repr=False)
    """May have keys in it."""
    cache_salt: str = ""
    adapter: str | None = None
    """The LoRA adapter that answers; only where the flavour has them."""

    @property
    def route(self) -> str:
        return CHAT_ROUTE if self.is_chat else COMPLETIONS_ROUTE

    def body(self, fields: Mapping[str, Any], *, tag: ProgramTag, priority: int) -> dict[str, Any]:
        """The fields with what all requests have. Raises UnsupportedError for a priority that has no
        meaning."""
        body: dict[str, Any] = {"model": self.model, **fields}
        if self.cache_salt and self.flavour.salt is not None:
            body[self.flavour.salt] = self.cache_salt
        if self.adapter is not None:
            assert self.flavour.lora is not None
            body[self.flavour.lora] = self.adapter
        if priority and not self.flavour.priority_sign:
            raise UnsupportedError(f"{self.name} has no priorities; leave priority={priority} out")
        if priority:
            body["priority"] = priority * self.flavour.priority_sign
        if self.flavour.program is not None:
            body[self.flavour.program] = tag
        body.update(self.extra_body)
        return {key: value for key, value in body.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that generates, and how its answer is to be read."""

    body: dict[str, Any]
    reading: Reading


def generation(
    whom: Addressee,
    transcript: Transcript,
    params: SamplingParams,
    *,
    tag: ProgramTag,
    priority: int,
    offer: ToolOffer | None,
) -> Generation:
    """The request for an answer, streamed with its usage.

    Raises:
        UnsupportedError: the server has no way to do a part of it.
    """
    held = Constraint() if params.grammar is None else constraint(params.grammar, whom.flavour)
    if held.wrapping is not None:
        _check_wrapped(whom, params)
    server_stops = held.wrapping is None and len(params.stop) <= whom.flavour.max_stops
    fields: dict[str, Any] = {
        **prompt(whom, transcript),
        **_sampling(whom, params, server_stops=server_stops),
        **held.fields,
        **whom.flavour.token_id_fields,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if offer is not None:
        fields |= _tools(offer)
    reading = Reading.of(
        params, held.wrapping, server_stops=server_stops, server_regexes=whom.flavour.takes_stop_regexes
    )
    return Generation(whom.body(fields, tag=tag, priority=priority), reading)


def prompt(whom: Addressee, transcript: Transcript) -> dict[str, Any]:
    """The fields that say what is to be continued."""
    if not whom.is_chat:
        return {"prompt": prompt_text(transcript, whom.name)}
    messages, continues = chat_messages(transcript, whom.name)
    if not whom.flavour.takes_bare_tool_messages:
        messages = without_bare_tool_messages(messages)
    if not continues:
        return {"messages": messages}
    if whom.flavour.continuing is None:
        raise UnsupportedError(
            f"{whom.name} cannot go on in the middle of the assistant's turn; begin the turn with the gen, and "
            "say in the user's turn what the answer is to begin with"
        )
    return {"messages": messages, **whom.flavour.continuing}


def _sampling(whom: Addressee, params: SamplingParams, *, server_stops: bool) -> dict[str, Any]:
    flavour = whom.flavour
    fields: dict[str, Any] = {}
    for name, key in flavour.fields.items():
        value = getattr(params, name)
        is_said = value != getattr(_DEFAULTS, name) or (flavour.is_fully_specified and name in FULLY_SPECIFIED)
        if is_said and (server_stops or name not in ("stop", "stop_regex")):
            fields[key] = list(value) if isinstance(value, tuple) else value
    if fields.get("top_k") == 0:
        fields["top_k"] = -1
    if params.logit_bias is not None:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if params.max_tokens is not None:
        fields[flavour.max_tokens if whom.is_chat else "max_tokens"] = params.max_tokens
    return fields | logprobs_fields(whom, params.logprobs)


def logprobs_fields(whom: Addressee, count: int | None) -> dict[str, Any]:
    """``count``: as SamplingParams.logprobs."""
    if count is None:
        return {}
    flavour = whom.flavour
    most = flavour.max_top_logprobs if whom.is_chat else flavour.max_completion_logprobs
    if count > most:
        raise UnsupportedError(f"{whom.name} tells {most} logprobs a token at most; logprobs is {count}")
    if whom.is_chat:
        return {"logprobs": True, "top_logprobs": count, **flavour.logprob_id_fields}
    return {"logprobs": count, **flavour.logprob_id_fields}


def _check_wrapped(whom: Addressee, params: SamplingParams) -> None:
    for name in ("logprobs", "logit_bias"):
        if getattr(params, name) is not None:
            raise UnsupportedError(
                f"{whom.name} is held to this constraint inside a JSON object, whose tokens are not the "
                f"answer's; leave {name} out"
            )


def _tools(offer: ToolOffer) -> dict[str, Any]:
    tools = []
    for tool in offer.tools:
        function: dict[str, Any] = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        }
        if is_strict(tool.parameters):
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    choice: object = offer.choice
    if offer.choice not in ("auto", "required", "none"):
        choice = {"type": "function", "function": {"name": offer.choice}}
    return {"tools": tools, "tool_choice": choice}


def is_strict(schema: object) -> bool:
    """Whether OpenAI's strict mode takes the schema: every object has all its properties and no others.

    What is not held to its schema is checked when the tool is called.
    """
    match schema:
        case dict():
            if schema.get("type") == "object":
                properties = schema.get("properties", {})
                closed = schema.get("additionalProperties") is False
                if not closed or set(schema.get("required", ())) != set(properties):
                    return False
            return "default" not in schema and all(is_strict(value) for value in schema.values())
        case list():
            return all(map(is_strict, schema))
        case _:
            return True
