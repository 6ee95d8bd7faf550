"""Token ids against the vocabulary."""

import pytest

from ramet.runtime.executor.validation import validate_for_vocab
from ramet.runtime.protocol import InvalidRequestError, SamplingParams


def test_ids_of_the_vocabulary_pass() -> None:
    validate_for_vocab(SamplingParams(logit_bias={0: 1.0, 9: 1.0}, stop_token_ids=(9,)), 10)
    validate_for_vocab(SamplingParams(), 10)


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("logit_bias", SamplingParams(logit_bias={3: 1.0, 10: 1.0})),
        ("stop_token_ids", SamplingParams(stop_token_ids=(10,))),
    ],
)
def test_ids_beyond_it_are_refused_by_name(field: str, params: SamplingParams) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} names token 10; .* 0 to 9") as caught:
        validate_for_vocab(params, 10)
    assert caught.value.field == field
