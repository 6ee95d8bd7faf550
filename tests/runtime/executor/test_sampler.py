"""The sampler against its oracle, its independence of the batch, its errors and its statistics."""

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.executor.row_ops import DeviceRows, HostRows, RowOps
from ramet.runtime.executor.sampler import NOT_FINITE, NOTHING_ALLOWED, Sampler
from ramet.runtime.scheduler.batch import BatchRow, RowResult
from tests.runtime.executor import sampling_oracle
from tests.runtime.executor.rows import bitmask, decode_row

CPU = torch.device("cpu")
INF = float("inf")


def logits_of(*rows: Any) -> torch.Tensor:
    return torch.tensor(np.array(rows), dtype=torch.float32)


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def sample(logits: torch.Tensor, *rows: BatchRow, ops: RowOps | None = None) -> list[RowResult]:
    return Sampler(logits.shape[1], CPU, ops).sample(logits.clone(), rows)


def tokens_of(logits: torch.Tensor, *rows: BatchRow) -> list[list[int]]:
    results = sample(logits, *rows)
    assert [result.error for result in results] == [None] * len(rows)
    return [result.token_ids for result in results]


def random_row(rng: np.random.Generator, vocab_size: int, *, num_drafts: int = 0) -> BatchRow:
    """Any mix of parameters, one draw of each."""

    def maybe(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.5 else default

    def ids(count: int) -> list[int]:
        return [int(token) for token in rng.integers(0, vocab_size, count)]

    positions = 1 + num_drafts
    dense = rng.integers(-(2**31), 2**31, size=(positions, -(-vocab_size // 32)), dtype=np.int32)
    return decode_row(
        ids(1 + int(rng.integers(20))),
        ids(int(rng.integers(20))),
        ids(num_drafts),
        seed=int(rng.integers(2**63)),
        slot=int(rng.integers(1000)),
        request_id=str(rng.random()),
        banned=tuple(maybe(ids(3), [])),
        mask=maybe(dense, None),
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
        top_k=int(maybe(rng.integers(1, vocab_size + 10), 0)),
        top_p=float(maybe(rng.uniform(0.05, 1.0), 1.0)),
        min_p=float(maybe(rng.uniform(0.0, 0.3), 0.0)),
        frequency_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        presence_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        repetition_penalty=float(maybe(rng.uniform(0.5, 2), 1.0)),
        logit_bias=maybe({token: float(rng.uniform(-10, 10)) for token in ids(5)}, None),
        min_tokens=int(rng.integers(0, 30)),
        max_tokens=None,
        logprobs=maybe(int(rng.integers(0, 8)), None),
    )


class TestOracle:
    @pytest.mark.parametrize("vocab_size", [7, 300, 1000])
    @pytest.mark.parametrize("ops", [HostRows(), DeviceRows()], ids=["host", "device"])
    def test_any_mix_of_parameters_samples_the_oracles_tokens(self, vocab_size: int, ops: RowOps) -> None:
        rng = np.random.default_rng(vocab_size)
        for trial in range(8):
            rows = [random_row(rng, vocab_size) for _ in range(16)]
            logits = random_logits(16, vocab_size, trial)
            for at, (row, result) in enumerate(zip(rows, sample(logits, *rows, ops=ops), strict=True)):
                array = logits[at].double().numpy()
                if np.isneginf(sampling_oracle.edited(array, row)).all():
                    assert result == RowResult(
                        [], [] if row.params.logprobs is not None else None, None, NOTHING_ALLOWED
                    )
                    continue
                assert result.token_ids == [sampling_oracle.token(array, row)], row
                self.check_logprobs(sampling_oracle.logprobs(sampling_oracle.edited(array, row)), row, result)

    @staticmethod
    def check_logprobs(expected: npt.NDArray[np.float64], row: BatchRow, result: RowResult) -> None:
        if row.params.logprobs is None:
            assert result.logprobs is None
            return
        assert result.logprobs is not None
        (entry,) = result.logprobs
        best_first = sorted(range(len(expected)), key=lambda token: (-expected[token], token))
        assert entry.chosen.token_id == result.token_ids[0]
        assert entry.chosen.logprob == pytest.approx(expected[result.token_ids[0]], abs=1e-5)
        assert best_first[entry.chosen.rank] == result.token_ids[0]
        possible = [token for token in best_first[: row.params.logprobs] if expected[token] > -INF]
        assert [top.token_id for top in entry.top] == possible
        assert [top.rank for top in entry.top] == list(range(len(possible)))
        for top in entry.top:
            assert top.logprob == pytest.approx(expected[top.token_id], abs=1e-5)

    @given(seed=st.integers(0, 2**32), num_drafts=st.integers(0, 4), sharp=st.booleans())
    def test_drafts_give_the_tokens_of_plain_decoding(self, seed: int, num_drafts: int, sharp: bool) -> None:
        rng = np.random.default_rng(seed)
        vocab_size = 9
        # Sharp logits make right drafts frequent.
        logits = random_logits(1 + num_drafts, vocab_size, seed % 2**31, 30.0 if sharp else 1.0)
        row = random_row(rng, vocab_size, num_drafts=num_drafts)
        array = logits.double().numpy()
        impossible = [
            np.isneginf(sampling_oracle.edited(array[i], row, i)).all() for i in range(1 + num_drafts)
        ]
        (result,) = sample(logits, row)
        if not any(impossible):
            assert result.token_ids == sampling_oracle.tokens(array, row)
        elif impossible[0]:
            assert result.error == NOTHING_ALLOWED
        else:
            assert result.error is None


class TestIndependenceOfTheBatch:
    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize(("vocab_size", "num_rows"), [(1000, 64), (4099, 64), (49152, 12)])
    def test_a_row_alone_and_among_others(self, vocab_size: int, num_rows: int, threads: int) -> None:
        torch.set_num_threads(threads)
        rng = np.random.default_rng(0)
        rows = [random_row(rng, vocab_size) for _ in range(num_rows)]
        logits = random_logits(num_rows, vocab_size)
        together = sample(logits, *rows)
        for at, row in enumerate(rows):
            assert sample(logits[at : at + 1], row) == [together[at]]

    def test_the_place_in_the_batch_is_of_no_matter(self) -> None:
        rng = np.random.default_rng(1)
        rows = [random_row(rng, 512) for _ in range(24)]
        logits = random_logits(24, 512)
        order = rng.permutation(24).tolist()
        mixed = sample(logits[order], *[rows[at] for at in order])
        assert [sample(logits, *rows)[at] for at in order] == mixed


class TestGreedy:
    @pytest.mark.parametrize("ops", [HostRows(), DeviceRows()], ids=["host", "device"])
    def test_ties_go_to_the_lowest_id(self, ops: RowOps) -> None:
        logits = torch.zeros(3, 1000)
        logits[0, [3, 4, 999]] = 5.0
        logits[1, [998, 999]] = 5.0
        rows = [decode_row(temperature=0.0, slot=slot) for slot in range(3)]
        assert [r.token_ids for r in sample(logits, *rows, ops=ops)] == [[3], [998], [0]]

    def test_a_tiny_temperature_is_greedy(self) -> None:
        assert tokens_of(random_logits(1, 100), decode_row(temperature=1e-6)) == [
            [int(random_logits(1, 100).argmax())]
        ]


class TestEachParameterCounts:
    """Every test here fails if its parameter is ignored."""

    LOGITS = (0.0, 1.0, 2.0, 3.0)

    def distinct(self, **params: Any) -> set[int]:
        rows = [decode_row(prompt=[9], seed=seed, slot=seed, **params) for seed in range(300)]
        logits = logits_of(*[self.LOGITS] * len(rows))
        return {token for (token,) in tokens_of(logits, *rows)}

    def greedy(self, **params: Any) -> int:
        ((token,),) = tokens_of(logits_of(self.LOGITS), decode_row(temperature=0.0, **params))
        return token

    def test_nothing_set_reaches_every_token(self) -> None:
        assert self.distinct() == {0, 1, 2, 3}

    def test_temperature(self) -> None:
        assert self.distinct(temperature=0.05) == {3}

    def test_top_k(self) -> None:
        assert self.distinct(top_k=2, temperature=5.0) == {2, 3}

    def test_top_k_of_the_whole_vocabulary_or_more_is_off(self) -> None:
        assert self.distinct(top_k=400) == {0, 1, 2, 3}

    def test_top_p(self) -> None:
        # Shares: .032 .087 .237 .644
        assert self.distinct(top_p=0.6) == {3}
        assert self.distinct(top_p=0.65) == {2, 3}
        assert self.distinct(top_p=0.97) == {0, 1, 2, 3}

    def test_top_p_counts_the_share_of_what_top_k_left(self) -> None:
        assert self.distinct(top_k=2, top_p=0.7) == {3}
        assert self.distinct(top_k=2, top_p=0.8) == {2, 3}

    def test_min_p(self) -> None:
        # Relative to the best: .050 .135 .368 1
        assert self.distinct(min_p=0.3) == {2, 3}
        assert self.distinct(min_p=0.1) == {1, 2, 3}

    def test_min_p_follows_temperature(self) -> None:
        assert self.distinct(min_p=0.3, temperature=0.5) == {3}

    def test_seed(self) -> None:
        logits = logits_of(*[self.LOGITS] * 40)
        rows = [decode_row(seed=seed, slot=seed) for seed in range(40)]
        assert len({token for (token,) in tokens_of(logits, *rows)}) > 1
        assert tokens_of(logits, *rows) == tokens_of(logits, *rows)

    def test_the_output_position_moves_the_draw(self) -> None:
        rows = [decode_row(output=[0] * length, slot=length) for length in range(40)]
        assert len({token for (token,) in tokens_of(logits_of(*[self.LOGITS] * 40), *rows)}) > 1

    def test_frequency_penalty_grows_with_the_count(self) -> None:
        assert self.greedy(output=[3], frequency_penalty=0.6) == 3
        assert self.greedy(output=[3, 3], frequency_penalty=0.6) == 2

    def test_presence_penalty_does_not(self) -> None:
        assert self.greedy(output=[3], presence_penalty=1.2) == 2
        assert self.greedy(output=[3, 3, 3], presence_penalty=0.8) == 3

    def test_neither_counts_the_prompt(self) -> None:
        assert self.greedy(prompt=[3, 3, 3], presence_penalty=2.0, frequency_penalty=2.0) == 3

    def test_repetition_penalty_counts_prompt_and_output(self) -> None:
        assert self.greedy(prompt=[3], repetition_penalty=2.0) == 2
        assert self.greedy(prompt=[3], output=[2], repetition_penalty=10.0) == 1

    def test_repetition_penalty_makes_negative_logits_more_negative(self) -> None:
        row = decode_row(prompt=[0], temperature=0.0, repetition_penalty=2.0)
        assert tokens_of(logits_of([-1.0, -1.5]), row) == [[1]]

    def test_logit_bias(self) -> None:
        assert self.greedy(logit_bias={0: 3.5}) == 0
        assert self.greedy(logit_bias={3: -100.0, 2: -2.0}) == 1

    def test_banned_tokens(self) -> None:
        assert self.greedy(banned=(3, 2)) == 1

    def test_mask(self) -> None:
        assert self.greedy(mask=bitmask(4, [0, 1])) == 1

    def test_a_bias_cannot_lift_a_ban_or_a_mask(self) -> None:
        assert self.greedy(logit_bias={3: 100.0}, banned=(3,)) == 2
        assert self.greedy(logit_bias={3: 100.0}, mask=bitmask(4, [0, 1, 2])) == 2


class TestLogprobs:
    def test_they_are_taken_before_temperature_and_filters_and_after_edits(self) -> None:
        row = decode_row(
            prompt=[9], temperature=3.0, top_k=1, logprobs=3, logit_bias={0: 1.0}, mask=bitmask(4, [0, 1, 2])
        )
        (result,) = sample(logits_of([0.0, 0.0, 1.0, 7.0]), row)
        expected = np.log(np.exp([1.0, 0.0, 1.0]) / np.exp([1.0, 0.0, 1.0]).sum())
        assert result.logprobs is not None
        assert [top.token_id for top in result.logprobs[0].top] == [0, 2, 1]
        assert [top.logprob for top in result.logprobs[0].top] == pytest.approx(expected[[0, 2, 1]])
        assert result.logprobs[0].chosen == result.logprobs[0].top[0]

    def test_zero_asks_for_the_chosen_token_alone(self) -> None:
        (result,) = sample(logits_of([0.0, 1.0]), decode_row(logprobs=0))
        assert result.logprobs is not None
        assert result.logprobs[0].top == ()

    def test_one_for_each_committed_token(self) -> None:
        logits = torch.eye(6)[[2, 3, 4]] * 9
        (result,) = sample(logits, decode_row(drafts=[2, 5], temperature=0.0, logprobs=1))
        assert result.token_ids == [2, 3]
        assert result.logprobs is not None
        assert [entry.chosen.token_id for entry in result.logprobs] == [2, 3]


class TestErrors:
    @pytest.mark.parametrize("value", [float("nan"), INF, -INF])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_logits_that_are_not_finite_fail_their_row_alone(self, value: float, temperature: float) -> None:
        logits = random_logits(3, 50)
        logits[1, 20] = value
        rows = [
            decode_row(slot=slot, temperature=temperature, logprobs=2, frequency_penalty=1.0, output=[20])
            for slot in range(3)
        ]
        first, second, third = sample(logits, *rows)
        assert second.token_ids == []
        assert second.error == NOT_FINITE
        assert [first, third] == sample(logits[[0, 2]], rows[0], rows[2])

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}])
    def test_no_token_allowed_fails_its_row_alone(self, temperature: float, filters: dict[str, Any]) -> None:
        logits = random_logits(3, 50)
        params = {"temperature": temperature, "logprobs": 2, **filters}
        rows = [
            decode_row(slot=0, **params),
            decode_row(slot=1, mask=bitmask(50, [4, 5]), banned=(4, 5), **params),
            decode_row(slot=2, **params),
        ]
        first, second, third = sample(logits, *rows)
        assert (second.token_ids, second.error) == ([], NOTHING_ALLOWED)
        assert [first, third] == sample(logits[[0, 2]], rows[0], rows[2])

    def test_an_error_behind_accepted_drafts_is_left_to_the_next_step(self) -> None:
        logits = torch.eye(6)[[2, 3, 4]] * 9
        logits[1] = float("nan")
        (result,) = sample(logits, decode_row(drafts=[2, 3], temperature=0.0))
        assert (result.token_ids, result.error) == ([2], None)

    def test_an_error_behind_a_wrong_draft_is_none(self) -> None:
        logits = torch.eye(6)[[2, 3]] * 9
        logits[1] = float("nan")
        (result,) = sample(logits, decode_row(drafts=[5], temperature=0.0))
        assert (result.token_ids, result.error) == ([2], None)

    @pytest.mark.parametrize("temperature", [0.0, 2e-5, 1.0, 100.0])
    def test_extreme_parameters_neither_raise_nor_make_nan(self, temperature: float) -> None:
        params: dict[str, Any] = {"temperature": temperature, "logprobs": 3, "output": [0, 1, 2]}
        rows = [
            decode_row(repetition_penalty=1e-300, **params),
            decode_row(repetition_penalty=100.0, **params),
            decode_row(top_p=1e-300, **params),
            decode_row(min_p=1.0, **params),
            decode_row(top_p=1.0 - 1e-16, **params),
            decode_row(logit_bias={0: 100.0, 10**9: 5.0}, banned=(10**9,), **params),
        ]
        for result in sample(random_logits(len(rows), 50, scale=100.0), *rows):
            assert result.error is None
            assert len(result.token_ids) == 1
            assert result.logprobs is not None
            assert all(np.isfinite(top.logprob) for top in result.logprobs[0].top)

    def test_logits_beyond_any_models_are_not_finite(self) -> None:
        (result,) = sample(torch.full((1, 50), 3e38), decode_row())
        assert result.error == NOT_FINITE

    def test_no_rows(self) -> None:
        assert Sampler(10, CPU).sample(torch.empty(0, 10), []) == []


class TestDrafts:
    EYE = torch.eye(8) * 9

    def test_all_accepted_and_one_more(self) -> None:
        assert tokens_of(self.EYE[[1, 2, 3]], decode_row(drafts=[1, 2], temperature=0.0)) == [[1, 2, 3]]

    def test_stops_behind_the_first_mismatch(self) -> None:
        assert tokens_of(self.EYE[[1, 2, 3]], decode_row(drafts=[1, 7], temperature=0.0)) == [[1, 2]]
        assert tokens_of(self.EYE[[1, 2, 3]], decode_row(drafts=[7, 2], temperature=0.0)) == [[1]]

    def test_penalties_see_accepted_drafts(self) -> None:
        logits = logits_of([0, 5.0, 4.5], [0, 5.0, 4.5])
        row = decode_row(prompt=[0], drafts=[1], temperature=0.0, presence_penalty=1.0)
        assert tokens_of(logits, row) == [[1, 2]]

    def test_masks_are_a_position(self) -> None:
        row = decode_row(drafts=[1], temperature=0.0, mask=bitmask(8, [1, 2], [6]))
        assert tokens_of(self.EYE[[1, 2]], row) == [[1, 6]]

    def test_a_ban_ends_where_drafts_reach_min_tokens(self) -> None:
        row = decode_row(drafts=[1, 2], temperature=0.0, banned=(5,), min_tokens=2)
        logits = self.EYE[[1, 2, 5]]
        assert tokens_of(logits, row) == [[1, 2, 5]]
        longer = decode_row(drafts=[1, 2], temperature=0.0, banned=(5,), min_tokens=3)
        assert tokens_of(logits, longer) == [[1, 2, 0]]


class TestStatistics:
    """Frequencies against the exact distribution. Seeds are fixed, so nothing here is left to chance."""

    DRAWS = 8_000

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"temperature": 0.5},
            {"temperature": 1.8},
            {"top_k": 5},
            {"top_p": 0.8},
            {"min_p": 0.15},
            {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.1},
            {"temperature": 0.7, "top_p": 0.95, "min_p": 0.02},
        ],
        ids=str,
    )
    def test_chi_square(self, params: dict[str, Any]) -> None:
        vocab_size = 20
        one = random_logits(1, vocab_size, seed=5, scale=1.5)
        row = decode_row(**params)
        exact = sampling_oracle.distribution(sampling_oracle.edited(one[0].double().numpy(), row), row)
        counts: Counter[int] = Counter()
        sampler = Sampler(vocab_size, CPU)
        logits = one.repeat(500, 1)
        for start in range(0, self.DRAWS, 500):
            rows = [decode_row(seed=seed, slot=seed, **params) for seed in range(start, start + 500)]
            counts.update(result.token_ids[0] for result in sampler.sample(logits.clone(), rows))
        possible = np.flatnonzero(exact)
        assert set(counts) <= set(possible.tolist())
        expected = exact[possible] * self.DRAWS
        chi_square = (
            ((np.array([counts[token] for token in possible.tolist()]) - expected) ** 2) / expected
        ).sum()
        degrees = len(possible) - 1
        # Mean and deviation of the chi-square distribution: degrees, sqrt(2 * degrees).
        assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 1


class TestStateIsNeverVisible:
    def test_token_counts_survive_steps_preemption_and_reused_slots(self) -> None:
        rng = np.random.default_rng(3)
        sampler = Sampler(40, CPU)
        params: dict[str, Any] = {"frequency_penalty": 0.7, "repetition_penalty": 1.3, "logit_bias": {1: 2.0}}
        for request in range(6):
            prompt = [int(token) for token in rng.integers(0, 40, 5)]
            output: list[int] = []
            slot = request % 2
            sampler.forget(slot)
            for step in range(12):
                if step == 6:
                    slot = 7  # Preempted, and resumed elsewhere.
                    sampler.forget(slot)
                row = decode_row(prompt, output, request_id="same", slot=slot, seed=request, **params)
                logits = random_logits(1, 40, request * 100 + step)
                (kept,) = sampler.sample(logits.clone(), [row])
                assert [kept] == sample(logits, row)
                output += kept.token_ids
