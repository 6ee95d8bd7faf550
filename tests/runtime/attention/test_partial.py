"""Partial attention: the two ways agree, and masked keys and neighbouring items change no bit."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.runtime.attention.partial import (
    _plain,
    additive_mask,
    gather,
    partial_attention,
    share_by_log_sum_exp,
)

SCALE = 0.2


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(items: int = 3, heads: int = 2, rows: int = 8, keys: int = 192) -> tuple[Tensor, Tensor, Tensor]:
    return (
        random(items, heads, rows, 64),
        random(items, heads, keys, 64, seed=1),
        random(items, heads, keys, 64, seed=2),
    )


@pytest.mark.parametrize("masked", [False, True])
def test_both_ways_agree(masked: bool) -> None:
    q, k, v = inputs()
    mask = None
    if masked:
        mask = torch.zeros(3, 1, 1, 192)
        mask[0, ..., 100:] = mask[1, ..., :7] = float("-inf")
    out, lse = partial_attention(q, k, v, mask, scale=SCALE, softcap=None)
    plain_out, plain_lse = _plain(q, k, v, mask, SCALE, None)
    torch.testing.assert_close(out, plain_out)
    torch.testing.assert_close(lse, plain_lse)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("heads", [1, 2])
def test_items_do_not_change_each_other(softcap: float | None, heads: int) -> None:
    q, k, v = inputs(heads=heads, rows=4)
    out, lse = partial_attention(q, k, v, None, scale=SCALE, softcap=softcap)
    for item in range(3):
        one = slice(item, item + 1)
        alone_out, alone_lse = partial_attention(q[one], k[one], v[one], None, scale=SCALE, softcap=softcap)
        assert torch.equal(alone_out, out[one])
        assert torch.equal(alone_lse, lse[one])


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("num_keys", [1, 63, 64, 100, 128, 192])
def test_masked_keys_change_nothing(softcap: float | None, num_keys: int) -> None:
    q, k, v = inputs()
    expected = None
    for length in (64, 128, 192):
        if length < num_keys:
            continue
        mask = torch.zeros(1, 1, 1, length)
        mask[..., num_keys:] = float("-inf")
        actual = partial_attention(q, k[:, :, :length], v[:, :, :length], mask, scale=SCALE, softcap=softcap)
        expected = actual if expected is None else expected
        assert torch.equal(actual[0], expected[0])
        assert torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_more_rows_change_nothing(softcap: float | None) -> None:
    q, k, v = inputs(items=2, rows=800)
    expected = partial_attention(q, k, v, None, scale=SCALE, softcap=softcap)
    for begin, end in ((0, 4), (4, 12), (100, 148), (0, 64), (32, 228), (0, 768)):
        actual = partial_attention(q[:, :, begin:end], k, v, None, scale=SCALE, softcap=softcap)
        assert torch.equal(actual[0], expected[0][:, :, begin:end])
        assert torch.equal(actual[1], expected[1][:, :, begin:end])


def test_gather_reads_spans_in_fp32() -> None:
    pool = random(20, 2, 8).to(torch.bfloat16)
    slots = torch.tensor([3, 4, 19, 0, 0, 7])
    spans = gather(pool, slots, 3)
    assert spans.shape == (2, 2, 3, 8)
    assert torch.equal(spans[0, 1], pool[[3, 4, 19], 1].float())
    assert torch.equal(spans[1, 0], pool[[0, 0, 7], 0].float())


def test_additive_mask() -> None:
    mask = additive_mask(np.array([[True, False]]), torch.device("cpu"))
    assert mask.dtype == torch.float32
    assert mask.tolist() == [[0.0, float("-inf")]]


def test_shares_are_the_softmax_and_unused_spans_change_no_bit() -> None:
    lse = random(4, 5, 3)
    shares = lse.clone()
    share_by_log_sum_exp(shares)
    torch.testing.assert_close(shares, lse.softmax(0))
    padded = torch.cat((lse, torch.full((20, 5, 3), float("-inf"))))
    share_by_log_sum_exp(padded)
    assert torch.equal(padded[:4], shares)
    assert not padded[4:].any()
