"""Rows to tensors: page table, positions, wanted logits."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ramet.runtime.executor.batch_builder import BatchBuilder, BuiltBatch
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow, Targets
from tests.runtime.executor.fakes import HashAttention

PAGE_SIZE = 4


class Built:
    """A builder and what its attention was told."""

    def __init__(self) -> None:
        self.attention = HashAttention(num_pages=100, page_size=PAGE_SIZE)
        self.builder = BatchBuilder(
            self.attention,
            max_running_requests=4,
            max_pages_per_request=8,
            page_size=PAGE_SIZE,
            device=torch.device("cpu"),
        )

    def build(self, *rows: BatchRow) -> BuiltBatch:
        return self.builder.build(rows)


def row(
    start: int, length: int, pages: tuple[int, list[int]] = (0, []), slot: int = 0, **changes: Any
) -> BatchRow:
    """Token ids are 100 + position."""
    history = list(range(100, 100 + start + length))
    whole = BatchRow(
        request_id=f"slot {slot}",
        slot=slot,
        start=start,
        token_ids=history[start:],
        first_new_page=pages[0],
        new_pages=pages[1],
        num_drafts=0,
        samples=True,
        params=SamplingParams(),
        seed=0,
        num_prompt_tokens=len(history),
        history=history,
    )
    return replace(whole, **changes)


def test_rows_follow_one_another() -> None:
    built = Built()
    batch = built.build(
        row(0, 6, (0, [9, 7]), slot=2),
        row(5, 3, (0, [3, 4]), slot=0, samples=False),
        row(8, 1, (0, [1, 2, 5]), slot=1),
    )
    forward = batch.forward
    assert forward.input_ids.tolist() == [100, 101, 102, 103, 104, 105, 105, 106, 107, 108]
    assert forward.positions.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert forward.logit_indices.tolist() == [5, 9]
    assert {tensor.dtype for tensor in (forward.input_ids, forward.positions, forward.logit_indices)} == {
        torch.int64
    }
    assert (batch.sampling_rows, batch.num_sampled, batch.num_logits) == ([0, 2], 2, 2)
    (metadata,) = built.attention.plans
    assert list(metadata.query_lens) == [6, 3, 1]
    assert list(metadata.kv_lens) == [6, 8, 9]
    assert metadata.page_table.shape == (3, 3)
    assert [pages[:count] for pages, count in zip(metadata.page_table.tolist(), (2, 2, 3), strict=True)] == [
        [9, 7],
        [3, 4],
        [1, 2, 5],
    ]


def test_a_batch_of_decodes() -> None:
    built = Built()
    batch = built.build(*[row(position, 1, (0, [position, 10]), slot=position) for position in range(4)])
    assert batch.forward.positions.tolist() == [0, 1, 2, 3]
    assert batch.forward.logit_indices.tolist() == [0, 1, 2, 3]


def test_the_page_table_grows_by_new_pages_only() -> None:
    built = Built()
    built.build(row(0, 4, (0, [5])))
    built.build(row(4, 1, (1, [6])))
    built.build(row(5, 3, (2, [])))
    built.build(row(8, 1, (2, [7])))
    assert built.attention.plans[-1].page_table.tolist() == [[5, 6, 7]]


def test_pages_taken_back_and_given_anew() -> None:
    built = Built()
    built.build(row(0, 9, (0, [5, 6, 7])))
    built.build(row(6, 3, (2, [8])))
    assert built.attention.plans[-1].page_table.tolist() == [[5, 6, 8]]


def test_what_a_plan_was_given_does_not_change() -> None:
    built = Built()
    built.build(row(0, 4, (0, [5])))
    built.build(row(0, 4, (0, [6])))
    assert built.attention.plans[0].page_table.tolist() == [[5]]


def test_a_slot_that_changes_hands_keeps_no_page() -> None:
    built = Built()
    built.build(row(0, 12, (0, [5, 6, 7])))
    built.build(row(0, 4, (0, [9])))
    with pytest.raises(ValueError, match=r"'slot 0' computes up to position 4, and has 1 pages of 4 tokens"):
        built.build(row(4, 1))


def test_more_pages_than_the_table_has() -> None:
    with pytest.raises(ValueError, match=r"'slot 0' has 9 pages; the page table has room for 8"):
        Built().build(row(0, 36, (0, list(range(9)))))


def test_drafts_are_sampled_with_the_token_before_them() -> None:
    batch = Built().build(row(0, 3, (0, [1]), slot=1), row(2, 4, (0, [2, 3]), num_drafts=3))
    assert batch.forward.logit_indices.tolist() == [2, 3, 4, 5, 6]
    assert batch.num_sampled == 5


@pytest.mark.parametrize(
    ("start", "length", "num_prompt_tokens", "first_wanted", "first", "last", "indices"),
    [
        (0, 5, 5, 0, 1, 4, [0, 1, 2, 3]),
        (0, 5, 9, 0, 1, 5, [0, 1, 2, 3, 4]),
        (5, 4, 9, 0, 6, 8, [0, 1, 2]),
        (5, 4, 9, 7, 7, 8, [1, 2]),
        (0, 5, 5, 1, 1, 4, [0, 1, 2, 3]),
        (0, 5, 5, 9, 9, 4, []),
        (7, 1, 7, 0, 8, 6, []),
        (0, 9, 5, 0, 1, 4, [0, 1, 2, 3]),
    ],
)
def test_prompt_targets(
    start: int,
    length: int,
    num_prompt_tokens: int,
    first_wanted: int,
    first: int,
    last: int,
    indices: list[int],
) -> None:
    params = SamplingParams(prompt_logprobs=1, prompt_logprobs_start=first_wanted)
    plain = row(0, 2, (0, [9]), slot=1)
    wanting = row(
        start, length, (0, [1, 2, 3]), params=params, num_prompt_tokens=num_prompt_tokens, samples=False
    )
    batch = Built().build(plain, wanting)
    (targets,) = batch.prompt_targets
    assert (targets.row, targets.first, targets.last, targets.count) == (1, first, last, len(indices))
    assert batch.forward.logit_indices.tolist() == [1, *[2 + index for index in indices]]
    assert batch.num_logits == 1 + len(indices)


def test_targets_come_behind_the_prompts_own() -> None:
    params = SamplingParams(prompt_logprobs=1)
    both = row(4, 4, (0, [1, 2, 3]), params=params, num_prompt_tokens=9, samples=False)
    both = replace(both, targets=Targets(5, ((1,), (2, 3), ())))
    plain = row(0, 2, (0, [9]), slot=1)
    batch = Built().build(both, plain)
    # Sampled: the plain row's last; the prompt's positions 5 to 8, seen from 4 to 7; and the targets' 5 to 7.
    assert batch.forward.logit_indices.tolist() == [5, 0, 1, 2, 3, 1, 2, 3]
    assert (batch.num_sampled, batch.first_target, batch.num_logits) == (1, 5, 8)
