"""The figures of benchmarks.quality, on distributions whose figures are known."""

import math

import pytest
import torch

from benchmarks.quality import WINDOW, compare, text_windows
from ramet.runtime.tokenizer import ByteTokenizer


def test_a_model_agrees_with_itself() -> None:
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    found = compare([[1, 2, 3, 4, 5]] * 2, list(logits), list(logits))
    assert found["kl"] == pytest.approx(0)
    assert found["top1"] == 1
    expected = -sum(float(window[i, i + 2]) for window in logits for i in range(4)) / 8
    assert found["perplexity"] == pytest.approx(math.exp(expected))


def test_kl_and_agreement_of_two_coins() -> None:
    fair, bent = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    found = compare([[0], [1]], [fair, bent], [bent, bent])
    first = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert found["kl"] == pytest.approx(first / 2)
    assert found["top1"] == 0.5


def test_windows_cover_the_text_once() -> None:
    windows = text_windows(ByteTokenizer(), 2 * WINDOW + 7)
    assert [len(window) for window in windows] == [WINDOW, WINDOW, 7]
    assert windows[0] != windows[1]
