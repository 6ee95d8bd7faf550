"""The line under an answer."""

import pytest

from ramet.runtime.cli.report import cut_note, tokens_per_second, usage_line
from ramet.runtime.engine.results import Increment
from ramet.runtime.protocol import FinishReason, RequestStats


def test_usage_line() -> None:
    stats = RequestStats(num_prompt_tokens=31, num_cached_tokens=24, num_output_tokens=11, ttft=0.5, e2e=2.5)
    assert usage_line(stats) == (
        "31 prompt tokens (24 cached, 7 computed), 11 generated, 5.0 tokens/s, first token after 0.50 s"
    )


@pytest.mark.parametrize(
    "stats",
    [
        RequestStats(),
        RequestStats(num_output_tokens=1, ttft=1.0, e2e=2.0),
        RequestStats(num_output_tokens=5, ttft=1.0, e2e=1.0),
        RequestStats(num_output_tokens=5, ttft=1.0),
    ],
)
def test_no_speed_where_there_is_none(stats: RequestStats) -> None:
    assert tokens_per_second(stats) is None
    assert "tokens/s" not in usage_line(stats)


@pytest.mark.parametrize(
    ("reason", "num_tokens", "note"),
    [
        (FinishReason.STOP, 8, ""),
        (FinishReason.LENGTH, 8, " (cut: --max-tokens)"),
        (FinishReason.LENGTH, 7, " (cut: the context or the KV pool is full)"),
    ],
)
def test_what_cut_an_answer(reason: FinishReason, num_tokens: int, note: str) -> None:
    stats = RequestStats(num_output_tokens=num_tokens)
    last = Increment(request_id="0", text="", token_ids=[], finish_reason=reason, stats=stats)
    assert cut_note(last, 8) == note
