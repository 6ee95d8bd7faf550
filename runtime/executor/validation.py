"""What SamplingParams cannot check by itself, because it needs the model's vocabulary."""

from ramet.runtime.protocol import InvalidRequestError, SamplingParams


def validate_for_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidRequestError if params names a token id that the model (logits of vocab_size) does not
    have.
    """
    for field, token_ids in (
        ("logit_bias", params.logit_bias or ()),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token_id in token_ids:
            if token_id >= vocab_size:
                raise InvalidRequestError(
                    f"{field} names token {token_id}; the model's token ids are 0 to {vocab_size - 1}",
                    field=field,
                )
