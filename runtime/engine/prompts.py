"""From what a user hands over to checked engine requests. Everything that can be refused without the engine is,
here.
"""

import operator
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.config import name_hint
from ramet.runtime.protocol import InvalidRequestError, ProgramTag, PromptTooLongError, SamplingParams

T = TypeVar("T")

Message = Mapping[str, Any]
"""One chat message: role and content, as the chat template takes them."""
Prompt = str | Sequence[int]
"""Text, or token ids."""

ELSEWHERE = {
    "best_of": "n",
    "choice": "grammar=Choice(options)",
    "ebnf": "grammar=Ebnf(text)",
    "guided_choice": "grammar=Choice(options)",
    "guided_grammar": "grammar=Ebnf(text)",
    "guided_json": "grammar=JsonSchema.of(schema)",
    "guided_regex": "grammar=Regex(pattern)",
    "include_stop_str_in_output": "include_stop=True",
    "json_schema": "grammar=JsonSchema.of(schema)",
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop=True",
    "num_return_sequences": "n",
    "regex": "grammar=Regex(pattern)",
    "response_format": "grammar",
    "return_logprob": "logprobs=0",
    "sampling_seed": "seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "structural_tag": "grammar=StructuralTag(text)",
    "structured_outputs": "grammar",
    "top_logprobs": "logprobs",
    "top_logprobs_num": "logprobs",
}
"""What parameters of other engines are called here."""
_MASK_64 = 2**64 - 1


def split_prompts(prompts: object) -> tuple[list[Prompt], bool]:
    """The prompts one by one, and whether they came as a batch. A list of ints is one prompt of token ids."""
    if isinstance(prompts, str):
        return [prompts], False
    if not isinstance(prompts, list | tuple):
        raise InvalidRequestError(
            f"prompts is {_shown(prompts)}; it must be a text, a list of token ids, or a list of those",
            field="prompts",
        )
    if not prompts:
        raise InvalidRequestError(
            "prompts is an empty list; give a prompt's text or token ids, or a list of prompts", field="prompts"
        )
    if all(isinstance(item, str | list | tuple) for item in prompts):
        return list(prompts), True
    return [prompts], False


def split_messages(messages: object) -> tuple[list[Sequence[Message]], bool]:
    """The conversations one by one, and whether they came as a batch."""
    if isinstance(messages, list | tuple) and messages:
        if all(isinstance(item, Mapping) for item in messages):
            return [messages], False
        if all(isinstance(item, list | tuple) for item in messages):
            for conversation in messages:
                split_messages(conversation)
            return list(messages), True
    raise InvalidRequestError(
        f"messages is {_shown(messages)}; it must be a list of messages such as "
        '[{"role": "user", "content": "..."}], or a list of such lists',
        field="messages",
    )


def check_text(text: str, field: str) -> str:
    """Refuses what no UTF-8 text can be: lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{field} has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is no text; decode the input as UTF-8, or replace it",
            field=field,
        ) from None
    return text


def check_token_ids(
    token_ids: Sequence[object], info: EngineInfo, field: str, what: str = "token id"
) -> list[int]:
    """A list of ints within the vocabulary, from any integers (numpy's too). ``what`` they are called."""
    checked = []
    for position, token_id in enumerate(token_ids):
        try:
            if isinstance(token_id, bool):
                raise TypeError
            value = operator.index(token_id)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidRequestError(
                f"{what} {position} is {_shown(token_id)}; a token id is an integer", field=field
            ) from None
        if not 0 <= value < info.vocab_size:
            raise InvalidRequestError(
                f"{what} {position} is {value}; the model's token ids are 0 to {info.vocab_size - 1}",
                field=field,
            )
        checked.append(value)
    return checked


def check_length(token_ids: Sequence[int], info: EngineInfo) -> None:
    """At least one token, and room for one more in the context and in the KV pool."""
    if not token_ids:
        raise InvalidRequestError("the prompt is empty; it needs at least one token", field="prompts")
    if len(token_ids) >= info.context_length:
        raise PromptTooLongError(
            f"the prompt has {len(token_ids)} tokens, and the context of {info.context_length} must hold "
            "at least one more; shorten it, or raise context_length if the model allows it",
            field="prompts",
        )
    if len(token_ids) >= info.kv_tokens:
        raise PromptTooLongError(
            f"the prompt has {len(token_ids)} tokens, and the KV pool of {info.kv_tokens} must hold at least "
            "one more; shorten it, or raise kv_tokens",
            field="prompts",
        )


def resolve_params(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    overrides: Mapping[str, Any],
    count: int,
    info: EngineInfo,
) -> list[SamplingParams]:
    """One SamplingParams a prompt: the given ones (or the defaults), with ``overrides`` applied, checked for
    this model.
    """
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        one = override_params(sampling_params or SamplingParams(), overrides)
        check_params(one, info)
        return [one] * count
    given = check_per_prompt(sampling_params, SamplingParams, "sampling_params", count)
    resolved = [override_params(item, overrides) for item in given]
    for item in resolved:
        check_params(item, info)
    return resolved


def resolve_tags(tag: ProgramTag | Sequence[ProgramTag] | None, count: int) -> list[ProgramTag]:
    if tag is None or isinstance(tag, ProgramTag):
        return [tag or ProgramTag()] * count
    return check_per_prompt(tag, ProgramTag, "tag", count)


def check_per_prompt(values: object, kind: type[T], field: str, count: int) -> list[T]:
    if not isinstance(values, list | tuple) or not all(isinstance(item, kind) for item in values):
        raise InvalidRequestError(
            f"{field} is {_shown(values)}; it must be one {kind.__name__}, or a list with one for each prompt",
            field=field,
        )
    if len(values) != count:
        raise InvalidRequestError(
            f"{field} has {len(values)} entries for {count} prompts; give one, or one for each prompt",
            field=field,
        )
    return list(values)


def override_params(params: SamplingParams, overrides: Mapping[str, Any]) -> SamplingParams:
    """``params`` with the given fields replaced."""
    known = SamplingParams.__struct_fields__
    for name in overrides:
        if name not in known:
            hint = name_hint(name, known, ELSEWHERE)
            raise InvalidRequestError(f"there is no sampling parameter {name!r}; {hint}", field=name)
    return msgspec.structs.replace(params, **overrides) if overrides else params


def check_params(params: SamplingParams, info: EngineInfo) -> None:
    """What a SamplingParams cannot know by itself: the model's vocabulary, and that it can be sent."""
    check_token_ids(params.stop_token_ids, info, "stop_token_ids", "stop_token_ids: entry")
    check_token_ids(list(params.logit_bias or ()), info, "logit_bias", "logit_bias: key")
    check_sendable(params, "sampling_params")


def check_sendable(value: object, field: str) -> None:
    """Refuses text that is no UTF-8 and integers beyond 64 bits, wherever they are in ``value``."""
    try:
        msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        raise InvalidRequestError(
            f"{field} has a lone surrogate in one of its texts, which is not text; replace it", field=field
        ) from None
    except OverflowError:
        raise InvalidRequestError(f"{field} has an integer of more than 64 bits", field=field) from None


def child_seed(seed: int | None, index: int) -> int | None:
    """The seed of answer ``index`` of n. Answer 0 has the seed itself: it is the answer that n=1 gives.

    The others' are one step of splitmix64 (Steele, Lea and Flood 2014) from it, so that seeds s and s + 1 share
    none.
    """
    if seed is None or index == 0:
        return seed
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
    mixed ^= mixed >> 31
    return mixed - 2**64 if mixed >= 2**63 else mixed


def child_params(params: SamplingParams) -> list[SamplingParams]:
    """One SamplingParams an answer, each with n=1. The prompt's log probabilities are computed for the first
    only.
    """
    if params.n == 1:
        return [params]
    first = msgspec.structs.replace(params, n=1)
    return [
        first,
        *(
            msgspec.structs.replace(first, seed=child_seed(params.seed, index), prompt_logprobs=None)
            for index in range(1, params.n)
        ),
    ]


def _shown(value: object) -> str:
    """Bounded, however large the value is."""
    return reprlib.repr(value)[:100]
