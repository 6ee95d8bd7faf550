"""What a request must be to be taken in: checked once, on arrival, so that it can always run to its end."""

from ramet.runtime.protocol import InvalidRequestError, PromptTooLongError
from ramet.runtime.scheduler.config import SchedulerConfig
from ramet.runtime.scheduler.request import Request


def check_request(request: Request, config: SchedulerConfig) -> int:
    """The most tokens, prompt and output together, that the request may come to have.

    max_tokens None, and a max_tokens that fits the context but not the KV pool, mean: as much as fits.

    Raises:
        InvalidRequestError: the prompt is empty, or a token id is not in the vocabulary.
        PromptTooLongError: the prompt and one token, or the prompt and max_tokens, exceed the context, or the
            prompt and one token exceed the KV pool.
    """
    _check_token_ids("token_ids", request.history, config.vocab_size)
    _check_token_ids("stop_token_ids", request.params.stop_token_ids, config.vocab_size)
    _check_token_ids("logit_bias", tuple(request.params.logit_bias or ()), config.vocab_size)
    num_prompt, max_tokens = request.num_prompt_tokens, request.params.max_tokens
    if num_prompt == 0:
        raise InvalidRequestError("the prompt has no tokens; give at least one", field="token_ids")
    context, num_slots = config.context_length, config.num_slots
    if num_prompt + 1 > context:
        raise PromptTooLongError(
            f"the prompt has {num_prompt} tokens and the context is {context}, of which the output needs at "
            f"least one; shorten the prompt to {context - 1} tokens or raise context_length",
            field="token_ids",
        )
    if max_tokens is not None and num_prompt + max_tokens > context:
        raise PromptTooLongError(
            f"the prompt's {num_prompt} tokens and max_tokens ({max_tokens}) are {num_prompt + max_tokens} "
            f"tokens, the context is {context}; lower max_tokens to {context - num_prompt}, pass None for as "
            "many as fit, or shorten the prompt",
            field="max_tokens",
        )
    if num_prompt + 1 > num_slots:
        raise PromptTooLongError(
            f"the prompt has {num_prompt} tokens and the KV pool holds {num_slots}, of which the output needs "
            f"at least one; shorten the prompt to {num_slots - 1} tokens or make the pool larger (kv_tokens)",
            field="token_ids",
        )
    total = context if max_tokens is None else num_prompt + max_tokens
    return min(total, context, num_slots)


def _check_token_ids(field: str, token_ids: list[int] | tuple[int, ...], vocab_size: int) -> None:
    if not token_ids:
        return
    if not set(map(type, token_ids)) <= {int}:
        wrong = next(token_id for token_id in token_ids if type(token_id) is not int)
        raise InvalidRequestError(f"{field} has {wrong!r:.80}; token ids are integers", field=field)
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{field} has token {token_id}; the model's token ids are 0 to {vocab_size - 1}", field=field
            )
