"""Log probabilities in both forms."""

import math

from ramet.runtime.engine import Increment
from ramet.runtime.protocol import FinishReason, Logprob, TokenLogprobs
from ramet.runtime.server.token_logprobs import (
    CompletionLogprobsWriter,
    answer_logprobs,
    content_logprobs,
    token_text,
)
from ramet.runtime.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


def entry(token_id: int, logprob: float, *top: tuple[int, float]) -> TokenLogprobs:
    return TokenLogprobs(
        Logprob(token_id, logprob, 0), tuple(Logprob(one, value, rank) for rank, (one, value) in enumerate(top))
    )


def test_what_is_impossible_is_still_a_number() -> None:
    (written,) = content_logprobs([entry(97, -0.5, (97, -0.5), (98, -math.inf))], TOKENIZER)
    assert [(top.token, top.logprob) for top in written.top_logprobs] == [("a", -0.5), ("b", -9999.0)]
    assert written.bytes == [97]


def test_a_token_is_spelled() -> None:
    assert [token_text(one, TOKENIZER) for one in (97, 0xF0, 257)] == ["a", "bytes:\\xf0", "</s>"]
    (special,) = content_logprobs([entry(257, -1)], TOKENIZER)
    assert (special.token, special.bytes) == ("</s>", None)


def test_the_token_that_ended_an_answer_is_not_part_of_it() -> None:
    entries = [entry(97, -1), entry(257, -2)]
    ended = Increment(
        request_id="r", token_ids=[97, 257], logprobs=entries, finish_reason=FinishReason.STOP, stop_reason=257
    )
    assert answer_logprobs(ended) == entries[:1]
    by_text = Increment(
        request_id="r", token_ids=[97, 98], logprobs=entries, finish_reason=FinishReason.STOP, stop_reason="b"
    )
    assert answer_logprobs(by_text) == entries
    assert answer_logprobs(Increment(request_id="r")) == []


def test_offsets_go_on_from_call_to_call() -> None:
    writer = CompletionLogprobsWriter(TOKENIZER)
    prompt = writer.write([97, 98], [None, entry(98, -1, (99, -0.1))])
    assert (prompt.tokens, prompt.token_logprobs, prompt.text_offset) == (["a", "b"], [None, -1.0], [0, 1])
    assert prompt.top_logprobs == [None, {"c": -0.1, "b": -1.0}]
    prompt.extend(writer.write([99], [entry(99, -2)]))
    assert prompt.text_offset == [0, 1, 2]
