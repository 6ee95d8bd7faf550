"""The counts that a batch's rows derive."""

from dataclasses import FrozenInstanceError, replace

import pytest

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch, Targets

CHUNK = BatchRow(
    request_id="a",
    slot=0,
    start=4,
    token_ids=[5, 6, 7],
    first_new_page=1,
    new_pages=[9],
    num_drafts=0,
    samples=False,
    params=SamplingParams(),
    seed=1,
    num_prompt_tokens=9,
    history=list(range(1, 10)),
)


def test_a_chunk_before_the_last_known_token_samples_nothing() -> None:
    assert (CHUNK.sampled_positions, CHUNK.end) == (0, 7)


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_the_last_known_token_and_each_draft_are_sampled_from(num_drafts: int) -> None:
    row = replace(CHUNK, start=8, token_ids=[9] + [0] * num_drafts, num_drafts=num_drafts, samples=True)
    assert row.sampled_positions == 1 + num_drafts
    assert row.end == 9 + num_drafts
    # Sampled positions are the row's last ones.
    assert row.end - row.sampled_positions == len(row.history) - 1


def test_a_whole_prompt_is_one_chunk_that_samples_once() -> None:
    row = replace(CHUNK, start=0, token_ids=CHUNK.history, samples=True)
    assert (row.sampled_positions, row.end) == (1, 9)


def test_a_batch_counts_the_tokens_of_its_rows() -> None:
    decode = replace(CHUNK, request_id="b", slot=1, start=8, token_ids=[9, 1, 2], num_drafts=2, samples=True)
    assert ScheduledBatch(3, (CHUNK, decode, replace(CHUNK, token_ids=[5]))).num_tokens == 7
    assert ScheduledBatch(0, ()).num_tokens == 0


def test_rows_batches_and_results_are_frozen() -> None:
    for record, field in ((CHUNK, "start"), (ScheduledBatch(0, ()), "rows"), (RowResult([]), "token_ids")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, field, None)
        assert not hasattr(record, "__dict__")


def test_the_history_is_a_live_view() -> None:
    history = [1, 2]
    row = replace(CHUNK, history=history)
    history.append(3)
    assert row.history is history


def test_what_a_row_need_not_say() -> None:
    assert (CHUNK.banned_token_ids, CHUNK.mask) == ((), None)
    result = RowResult([4])
    assert (result.logprobs, result.prompt_logprobs, result.error) == (None, None, None)


def test_the_targets_of_a_row() -> None:
    targets = Targets(3, ((1,), (2, 4), (5,)))
    assert targets.end == 6
    assert targets.within(0, 9) == targets
    assert targets.within(4, 5) == Targets(4, ((2, 4),))
    assert targets.within(0, 4) == Targets(3, ((1,),))
    for start, end in ((0, 3), (6, 9), (0, 0), (9, 12)):
        assert targets.within(start, end).token_ids == ()
