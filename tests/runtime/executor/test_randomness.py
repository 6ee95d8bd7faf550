"""The counter-based generator."""

import numpy as np

from ramet.runtime.executor.randomness import uniforms

WORD = 2**64


GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """SplitMix64's finaliser in plain integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % WORD
    return x ^ (x >> 31)


def reference(seed: int, position: int) -> float:
    return (mix((mix((seed + GOLDEN) % WORD) + (position + 1) * GOLDEN) % WORD) >> 11) / 2.0**53


def test_the_scrambler_is_splitmix64() -> None:
    # The published test vector: the first two outputs for the seed 1234567.
    assert mix((1234567 + GOLDEN) % WORD) == 6457827717110365317
    assert mix((1234567 + 2 * GOLDEN) % WORD) == 3203168211198807973


def test_it_agrees_with_plain_integers() -> None:
    seeds = [0, 1, 2**63, 2**64 - 1, 12345]
    positions = [0, 1, 2, 1000, 2**40]
    assert uniforms(seeds, positions).tolist() == [
        reference(*pair) for pair in zip(seeds, positions, strict=True)
    ]


def test_negative_seeds_are_taken_modulo_2_to_the_64() -> None:
    assert uniforms([-1], [3]) == uniforms([2**64 - 1], [3])


def test_each_number_depends_on_its_own_pair_alone() -> None:
    seeds, positions = list(range(100)), list(range(100, 200))
    together = uniforms(seeds, positions)
    assert together.tolist() == [uniforms([s], [p])[0] for s, p in zip(seeds, positions, strict=True)]


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in (uniforms([7] * 50_000, list(range(50_000))), uniforms(list(range(50_000)), [7] * 50_000)):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        assert ((counts - 500) ** 2 / 500).sum() < 99 + 4 * np.sqrt(2 * 99)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_neighbouring_seeds_do_not_see_shifted_sequences() -> None:
    first = set(uniforms([5] * 1000, list(range(1000))).tolist())
    assert first.isdisjoint(uniforms([6] * 1000, list(range(1000))).tolist())


def test_none() -> None:
    assert uniforms([], []).shape == (0,)
