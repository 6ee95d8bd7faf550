"""The quantities that follow from a row."""

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler import BatchRow, ScheduledBatch


def _row(*, num_tokens: int, num_drafts: int = 0, samples: bool = True) -> BatchRow:
    return BatchRow(
        request_id="a",
        slot=0,
        start=10,
        token_ids=list(range(num_tokens)),
        first_new_page=0,
        new_pages=[],
        num_drafts=num_drafts,
        samples=samples,
        params=SamplingParams(),
        seed=0,
        num_prompt_tokens=4,
        history=list(range(10 + num_tokens)),
    )


def test_a_row_samples_once_and_once_more_for_each_draft() -> None:
    assert _row(num_tokens=5).sampled_positions == 1
    assert _row(num_tokens=3, num_drafts=2).sampled_positions == 3
    assert _row(num_tokens=5, samples=False).sampled_positions == 0


def test_a_row_ends_behind_its_last_token() -> None:
    assert _row(num_tokens=5).end == 15


def test_a_batch_counts_all_tokens() -> None:
    assert ScheduledBatch(1, (_row(num_tokens=5), _row(num_tokens=1))).num_tokens == 6
