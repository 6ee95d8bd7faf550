import asyncio
import math
from collections.abc import AsyncGenerator

import pytest

from ramet.lang.backends.base import GenerateDelta, SelectRequest, SelectResult, ToolOffer
from ramet.lang.backends.spelled_select import check_select, spelled_select
from ramet.lang.backends.transcript import Answers, Transcript
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import (
    Choice,
    FinishReason,
    InvalidRequestError,
    Logprob,
    ProgramTag,
    SamplingParams,
    TokenLogprobs,
)


class Speller(Answers):
    """Answers with one text, a token a character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[SamplingParams] = []

    async def generate(
        self,
        transcript: Transcript,
        params: SamplingParams,
        *,
        tag: ProgramTag,
        priority: int,
        offer: ToolOffer | None,
    ) -> AsyncGenerator[GenerateDelta, None]:
        self.asked.append(params)
        for character in self.text:
            logprobs = None if params.logprobs is None else (TokenLogprobs(Logprob(1, -0.5, 0)),)
            yield GenerateDelta(text=character, logprobs=logprobs)
        yield GenerateDelta(finish_reason=FinishReason.STOP)

    async def select(self, transcript: Transcript, request: SelectRequest) -> SelectResult:
        return await spelled_select(self, "s", transcript, request, tells_logprobs=True)


def test_the_option_that_is_spelled() -> None:
    speller = Speller("bcd")
    request = SelectRequest(options=("a", "bcd"), temperature=0.5, seed=3)
    result = asyncio.run(speller.select(Transcript(), request))
    assert (result.index, result.option) == (1, "bcd")
    assert result.scores == (-math.inf, -1.5)
    assert result.token_logprobs == ((), (-0.5,) * 3)
    params = speller.asked[0]
    assert (params.grammar, params.temperature, params.seed) == (Choice(("a", "bcd")), 0.5, 3)


def test_what_is_no_option() -> None:
    with pytest.raises(GenerationError, match="s was held to the options, and answered 'x'"):
        asyncio.run(Speller("x").select(Transcript(), SelectRequest(options=("a", "b"))))


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(UnsupportedError, match="s cannot choose by 'sum'; it can by greedy"):
        check_select("s", SelectRequest(options=("a",), normalization="sum"), ("greedy",))
    for options in ((), ("a", "")):
        with pytest.raises(InvalidRequestError, match="at least one option, and no empty one"):
            check_select("s", SelectRequest(options=options), ("token_length",))
