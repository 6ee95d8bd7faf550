"""Token counts a slot, and what they do to logits."""

from collections import Counter
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.executor.penalties import PenaltyEdit, PenaltyStates, TokenCounts, apply_penalties
from tests.runtime.executor.rows import decode_row

REPEATED: dict[str, Any] = {"repetition_penalty": 1.5}
tokens = st.lists(st.integers(0, 9), max_size=30)


def as_dict(edit: PenaltyEdit) -> dict[int, int]:
    return dict(zip(edit.ids.tolist(), edit.counts.tolist(), strict=True))


def expected(prompt: list[int], output: list[int]) -> dict[int, int]:
    return dict.fromkeys(prompt, 0) | dict(Counter(output))


@given(prompt=st.lists(st.integers(0, 9), min_size=1), output=tokens, drafts=tokens, more=tokens)
def test_counts_are_those_of_the_history_at_each_position(
    prompt: list[int], output: list[int], drafts: list[int], more: list[int]
) -> None:
    states = PenaltyStates(10)
    edits = states.edits(decode_row(prompt, output, drafts, **REPEATED), 3)
    assert [edit.position for edit in edits] == list(range(3, 4 + len(drafts)))
    for offset, edit in enumerate(edits):
        assert as_dict(edit) == expected(prompt, output + drafts[:offset])
    # The drafts were refused; other tokens came.
    (edit,) = states.edits(decode_row(prompt, output + more, **REPEATED), 0)
    assert as_dict(edit) == expected(prompt, output + more)


def test_the_prompt_is_left_out_where_only_the_output_counts() -> None:
    (edit,) = PenaltyStates(10).edits(decode_row([1, 2], [3, 3], presence_penalty=1.0), 0)
    assert as_dict(edit) == {3: 2}


def test_another_request_in_the_slot_starts_anew() -> None:
    states = PenaltyStates(10)
    states.edits(decode_row([1], [2, 2], request_id="a", **REPEATED), 0)
    (edit,) = states.edits(decode_row([3], [4, 4, 4], request_id="b", **REPEATED), 0)
    assert as_dict(edit) == {3: 0, 4: 3}


def test_a_forgotten_slot_starts_anew_even_under_the_same_name() -> None:
    states = PenaltyStates(10)
    states.edits(decode_row([1], [2, 2], **REPEATED), 0)
    states.forget(0)
    states.forget(5)
    (edit,) = states.edits(decode_row([3], [4, 4, 4], **REPEATED), 0)
    assert as_dict(edit) == {3: 0, 4: 3}


def test_ids_beyond_the_vocabulary_are_left_out() -> None:
    (first, second) = PenaltyStates(10).edits(decode_row([1, 99], [2, 50], [77], **REPEATED), 0)
    assert as_dict(first) == as_dict(second) == {1: 0, 2: 1}


def test_more_distinct_tokens_than_the_first_allocation() -> None:
    counts = TokenCounts(decode_row(list(range(500)), **REPEATED), 1000)
    counts.extend(list(range(400, 900)))
    ids, occurrences = counts.after([])
    assert ids.tolist() == list(range(900))
    assert occurrences.tolist() == [0] * 400 + [1] * 500


def test_apply() -> None:
    logits = torch.tensor([[4.0, -4.0, 4.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    ids, counts = np.array([0, 1, 2]), np.array([0, 0, 3])
    apply_penalties(logits, [PenaltyEdit(0, ids, counts, frequency=0.5, presence=0.25, repetition=2.0)])
    assert logits.tolist() == [[2.0, -8.0, 2.0 - 1.5 - 0.25, 4.0], [1.0] * 4]
