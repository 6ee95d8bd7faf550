"""Hidden states of pooled positions: of a model whose head can be had apart, and of one whose cannot."""

import numpy as np
import pytest
import torch

from ramet.runtime.executor.hidden_states import NO_STATES, with_hidden_states
from ramet.runtime.executor.model_runner import ModelRunner, RunnerConfig
from ramet.runtime.executor.sampler import NOT_FINITE
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch
from tests.runtime.executor.fakes import HashAttention, HashModel, HeadedHashModel, hashes

VOCAB_SIZE = 50


def row(slot: int, history: list[int], start: int, end: int, pooled: range) -> BatchRow:
    return BatchRow(
        request_id=f"r{slot}",
        slot=slot,
        start=start,
        token_ids=history[start:end],
        first_new_page=0,
        new_pages=list(range(slot * 20, slot * 20 + len(history))),
        num_drafts=0,
        samples=end == len(history),
        params=SamplingParams(temperature=0.0),
        seed=0,
        num_prompt_tokens=len(history),
        history=history,
        pooled=pooled,
    )


def run(model: HashModel, *rows: BatchRow, most_logits: int = 1 << 20) -> list[RowResult]:
    config = RunnerConfig(
        max_running_requests=8, max_tokens_per_request=100, page_size=1, max_logit_elements=most_logits
    )
    runner = ModelRunner(model, HashAttention(400, 1), config, torch.device("cpu"))
    return runner.run(ScheduledBatch(0, rows))


HISTORIES = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


@pytest.mark.parametrize("most_logits", [1 << 20, VOCAB_SIZE])
def test_rows_get_the_states_of_their_positions_and_the_tokens_they_have_without(most_logits: int) -> None:
    first, second, third = HISTORIES
    rows = (
        row(0, first, 0, 4, range(1, 4)),
        row(1, second, 0, 2, range(0)),
        row(2, third, 0, 2, range(2)),
    )
    results = run(HeadedHashModel(VOCAB_SIZE), *rows, most_logits=most_logits)
    assert results[0].hidden_states is not None
    assert results[0].hidden_states[:, 0].tolist() == [np.float32(value) for value in hashes(first)[1:]]
    assert results[1].hidden_states is None
    assert results[2].hidden_states is not None
    assert results[2].hidden_states[:, 0].tolist() == [np.float32(value) for value in hashes(third)[:2]]
    plain = run(HeadedHashModel(VOCAB_SIZE), *(row(r.slot, list(r.history), 0, r.end, range(0)) for r in rows))
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]


@pytest.mark.parametrize("most_logits", [1 << 20, VOCAB_SIZE])
def test_a_model_that_keeps_its_states_fails_those_rows_alone(most_logits: int) -> None:
    first, second, _ = HISTORIES
    results = run(
        HashModel(VOCAB_SIZE),
        row(0, first, 0, 4, range(4)),
        row(1, second, 0, 2, range(0)),
        most_logits=most_logits,
    )
    assert results[0].error == NO_STATES
    assert len(results[1].token_ids) == 1


def test_states_that_are_not_finite_fail_their_row() -> None:
    first, second, _ = HISTORIES
    rows = [row(0, first, 0, 3, range(2)), row(1, second, 0, 1, range(1))]
    states = torch.tensor([[1.0], [float("nan")], [3.0]], dtype=torch.bfloat16)
    results = with_hidden_states(rows, states, [RowResult([]), RowResult([])])
    assert results[0].error == NOT_FINITE
    assert results[1].hidden_states is not None
    assert results[1].hidden_states.dtype == np.float32
    failed = with_hidden_states(rows, states, [RowResult([], error="before"), RowResult([])])
    assert failed[0].error == "before"
    assert failed[1].hidden_states is not None
