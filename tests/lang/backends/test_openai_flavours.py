import pytest

from ramet.lang.backends.openai_flavours import FLAVOURS, OPENAI, flavour_of, is_openai
from ramet.runtime.protocol import InvalidRequestError, SamplingParams


def test_every_field_is_one_of_sampling_params() -> None:
    for flavour in FLAVOURS.values():
        assert flavour.sampling_fields <= set(SamplingParams.__struct_fields__)
        assert "temperature" in flavour.sampling_fields


def test_by_name_and_by_address() -> None:
    assert flavour_of("vllm", "http://x").name == "vllm"
    assert flavour_of(None, "https://api.openai.com/v1") is OPENAI
    unknown = flavour_of(None, "http://127.0.0.1:1")
    assert not unknown.needs_key
    assert unknown.max_tokens == "max_tokens"
    assert unknown.sampling_fields == OPENAI.sampling_fields
    with pytest.raises(
        InvalidRequestError, match="flavour is 'tgi'; it must be one of openai, vllm, sglang, ramet"
    ):
        flavour_of("tgi", "http://x")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://openai.com.evil.org/v1", False),
        ("https://notopenai.com/v1", False),
        ("http://127.0.0.1:8000/v1?x=openai.com", False),
    ],
)
def test_whose_server_it_is(url: str, expected: bool) -> None:
    assert is_openai(url) is expected
