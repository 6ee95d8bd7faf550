"""From one call of the user's face to the engine requests that answer it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ramet.runtime.engine import prompts as checks
from ramet.runtime.engine.calls import Call, in_batch
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.protocol import (
    GenerateInput,
    InvalidRequestError,
    Pooling,
    ProgramTag,
    SamplingParams,
    SessionPin,
)
from ramet.runtime.tokenizer import Tokenizer, encode_chat


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How requests use the radix cache."""

    salt: str = ""
    """Prefixes are shared only between requests of the same salt."""
    pin: SessionPin | None = None
    """What each of them leaves there."""


NO_CACHE_USE = CacheUse()
"""As everybody uses it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the user asked, as they wrote it."""

    prompts: object = None
    messages: object = None
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tag: ProgramTag | Sequence[ProgramTag] | None = None
    priority: int = 0
    cache_salt: str = ""
    request_id: str | None = None
    pin: SessionPin | None = None
    """What each of the requests leaves in the cache."""
    pooling: Pooling | None = None
    """Of the prompts' embeddings, where these are wanted."""
    chat_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of encode_chat: tools, continue_final_message."""


@dataclass(frozen=True, slots=True)
class Intake:
    """Checks and encodes what users ask of one engine."""

    tokenizer: Tokenizer
    info: EngineInfo

    def calls(self, ask: Ask, new_id: Callable[[], str]) -> tuple[list[Call], bool]:
        """One call a prompt, in order, and whether the user gave a batch.

        Raises:
            InvalidRequestError: anything is wrong; in a batch the message begins with the prompt's index.
        """
        token_lists, is_batch = self.encode(ask)
        if ask.request_id is not None and len(token_lists) > 1:
            raise InvalidRequestError(
                f"request_id names one call, and there are {len(token_lists)} prompts; leave it out, or call "
                "once for each",
                field="request_id",
            )
        params = checks.resolve_params(ask.sampling_params, ask.overrides, len(token_lists), self.info)
        tags = checks.resolve_tags(ask.tag, len(token_lists))
        check_routing(ask, tags)
        calls = [
            make_call(ask, ask.request_id or new_id(), token_ids, one, tag)
            for token_ids, one, tag in zip(token_lists, params, tags, strict=True)
        ]
        return calls, is_batch

    def encode(self, ask: Ask) -> tuple[list[list[int]], bool]:
        """Token ids of every prompt or conversation, and whether the user gave a batch."""
        if (ask.prompts is None) == (ask.messages is None):
            raise InvalidRequestError("give either prompts or messages, and not both", field="prompts")
        if ask.messages is None:
            prompts, is_batch = checks.split_prompts(ask.prompts)
            if len(prompts) > 1 and all(isinstance(prompt, str) for prompt in prompts):
                return self._encode_texts(prompts), is_batch
            return self._each(prompts, self.encode_prompt), is_batch
        conversations, is_batch = checks.split_messages(ask.messages)
        return self._each(conversations, partial(self._encode_conversation, ask.chat_options)), is_batch

    def encode_prompt(self, prompt: object) -> list[int]:
        """Token ids as they are; text with the BOS that the model wants, and with its special tokens where
        their texts stand.

        A prompt as text is the model's own format, which special tokens are part of; text from strangers
        belongs into messages, where it never becomes one.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(checks.check_text(prompt, "prompts"), add_bos=True, allow_special=True)
        assert isinstance(prompt, list | tuple)
        return checks.check_token_ids(prompt, self.info, "prompts")

    def _encode_texts(self, texts: Sequence[Any]) -> list[list[int]]:
        """As encode_prompt of each, on all cores."""
        for index, text in enumerate(texts):
            checks.check_text(text, f"prompts[{index}]")
        token_lists = self.tokenizer.encode_batch(texts, add_bos=True, allow_special=True)
        return self._each(token_lists, list)

    def _encode_conversation(self, options: Mapping[str, Any], conversation: Any) -> list[int]:
        return encode_chat(self.tokenizer, conversation, **options)

    def _each(self, items: Sequence[Any], encode: Callable[[Any], list[int]]) -> list[list[int]]:
        token_lists = []
        for index, item in enumerate(items):
            try:
                token_ids = encode(item)
                checks.check_length(token_ids, self.info)
            except InvalidRequestError as error:
                raise in_batch(error, index, len(items)) from None
            token_lists.append(token_ids)
        return token_lists


def check_routing(ask: Ask, tags: Sequence[ProgramTag]) -> None:
    """Raises InvalidRequestError where id, salt, priority or tags are of no use."""
    for name in ("request_id", "cache_salt"):
        value = getattr(ask, name)
        if value is not None and (not isinstance(value, str) or len(value) > 256):
            raise InvalidRequestError(f"{name} must be a string of at most 256 characters", field=name)
        checks.check_text(value or "", name)
    if ask.request_id == "":
        raise InvalidRequestError("request_id is empty; leave it out or give a string", field="request_id")
    if isinstance(ask.priority, bool) or not isinstance(ask.priority, int) or abs(ask.priority) > 2**31:
        raise InvalidRequestError(
            f"priority is {ask.priority!r}; it must be an integer from {-(2**31)} to {2**31}", field="priority"
        )
    for tag in tags if isinstance(ask.tag, list | tuple) else tags[:1]:
        checks.check_sendable(tag, "tag")


def make_call(
    ask: Ask,
    request_id: str,
    token_ids: list[int],
    params: SamplingParams,
    tag: ProgramTag,
    continuations: Sequence[list[int]] = (),
) -> Call:
    """The requests of one prompt's answers, or the one that scores its continuations. They share the list of
    token ids, which nobody changes."""
    children = checks.child_params(params)
    inputs = tuple(
        GenerateInput(
            request_id=request_id if len(children) == 1 else f"{request_id}#{index}",
            token_ids=token_ids,
            params=child,
            priority=ask.priority,
            cache_salt=ask.cache_salt,
            tag=tag,
            continuations=list(continuations),
            pin=ask.pin,
            pooling=ask.pooling,
        )
        for index, child in enumerate(children)
    )
    return Call(request_id, token_ids, inputs)
