"""Draws and masks against the oracles."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.kernels import reference
from ramet.kernels.gpu.sampling import CAPACITY, DrawParams, apply_bitmask, bitmask_launch, draw_tokens
from ramet.runtime.executor.randomness import uniforms

INF = float("inf")


def params(rows: list[tuple[float, int, float, float]], seed: int = 0) -> tuple[DrawParams, Tensor]:
    """Of (temperature, top_k, top_p, min_p) rows; and the uniform numbers that they draw with."""
    seeds = [(seed + i) * 7919 - 3 for i in range(len(rows))]
    indices = list(range(len(rows)))
    made = DrawParams(
        torch.arange(len(rows), dtype=torch.int32),
        torch.tensor(seeds),
        torch.tensor(indices),
        torch.tensor([(t, p, m) for t, _, p, m in rows], dtype=torch.float64).view(-1, 3),
        torch.tensor([k for _, k, _, _ in rows], dtype=torch.int32),
    )
    return made, torch.from_numpy(uniforms(seeds, indices))


def check(logits: Tensor, rows: list[tuple[float, int, float, float]], seed: int = 0) -> Tensor:
    made, numbers = params(rows, seed)
    drawn = draw_tokens(logits, made)
    assert torch.equal(drawn, reference.draw_tokens(logits, numbers, made.numbers, made.top_ks))
    return drawn


@pytest.mark.parametrize(("vocab_size", "scale"), [(2, 1.0), (33, 3.0), (2049, 0.01), (5000, 6.0)])
def test_equals_the_oracle(vocab_size: int, scale: float) -> None:
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * scale
    logits[5, : vocab_size // 2] = -INF
    rows = [
        (1.0, 0, 1.0, 0.0),
        (0.5, 7, 1.0, 0.0),
        (2.0, 0, 0.9, 0.0),
        (1.0, vocab_size - 1, 0.5, 0.01),
        (0.1, 0, 1.0, 0.3),
        (1.5, 40, 0.999, 0.0),
    ]
    check(logits, rows)


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0, 2.0]).repeat(4, 1)
    drawn = (
        check(logits, [(9.0, 3, 1.0, 0.0)] * 4).tolist()
        + check(logits, [(9.0, 3, 1.0, 0.0)] * 4, seed=9).tolist()
    )
    assert set(drawn) == {1, 2, 3}
    # Of weights 1, four times e^-1 and less: the first and two of the others hold 0.65 of all.
    drawn = check(logits, [(1.0, 0, 0.65, 0.0)] * 4).tolist()
    assert set(drawn) <= {1, 2, 3}
    check(logits, [(1.0, 2, 0.99, 0.0), (1.0, 5, 0.7, 0.0), (1.0, 6, 1.0, 1.0), (1.0, 1, 0.01, 0.0)])


def test_more_candidates_than_are_gathered() -> None:
    logits = torch.randn(1, CAPACITY + 900, generator=torch.Generator().manual_seed(1)) * 0.1
    check(logits, [(1.0, 0, 0.99, 0.0)])
    check(logits, [(1.0, CAPACITY + 100, 1.0, 0.0)])


def test_rows_are_named_and_nothing_else_is_read() -> None:
    logits = torch.full((3, 50), float("nan"))
    logits[2] = torch.arange(50.0)
    made, numbers = params([(1.0, 5, 1.0, 0.0)])
    made = DrawParams(torch.tensor([2], dtype=torch.int32), made.seeds, made.indices, made.numbers, made.top_ks)
    expected = reference.draw_tokens(logits[2:], numbers, made.numbers, made.top_ks)
    assert torch.equal(draw_tokens(logits, made), expected)
    none, _ = params([])
    assert draw_tokens(logits, none).shape == (0,)


def test_one_token_that_is_left_is_drawn() -> None:
    logits = torch.full((1, 70), -INF)
    logits[0, 64] = -1e30
    check(logits, [(0.01, 0, 1.0, 0.0)])
    check(logits, [(0.01, 9, 0.5, 0.5)])


@pytest.mark.parametrize("vocab_size", [5, 32, 1025])
def test_bitmask(vocab_size: int) -> None:
    words = -(-vocab_size // 32)
    mask = torch.randint(-(2**31), 2**31, (2, words), dtype=torch.int32)
    logits = torch.randn(4, vocab_size)
    expected = logits.clone()
    reference.apply_bitmask(expected, 1, mask)
    apply_bitmask(logits, 1, mask)
    assert torch.equal(logits, expected)
    allowed = np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little")[:, :vocab_size]
    assert np.array_equal(expected[1:3].numpy() == -INF, allowed == 0)


def test_wrong_arguments_are_refused() -> None:
    made, _ = params([(1.0, 0, 1.0, 0.0)])
    with pytest.raises(ValueError, match="fp32 over 2 to"):
        draw_tokens(torch.randn(1, 8).half(), made)
    wrong = DrawParams(made.positions, made.seeds, made.indices, made.numbers.float(), made.top_ks)
    with pytest.raises(ValueError, match="fp64"):
        draw_tokens(torch.randn(1, 8), wrong)
    with pytest.raises(ValueError, match="3 words"):
        bitmask_launch(torch.zeros(1, 70), torch.zeros(1, 2, dtype=torch.int32))
