"""One uniform number per (seed, output position): a counter-based generator, so nothing is drawn in sequence.

A token's number depends on its request's seed and its place in the output alone. Whatever else runs, in
whatever order, and however often a request is preempted, the same request and seed see the same numbers.
"""

import numpy as np
import numpy.typing as npt

# SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): the odd
# increment nearest 2**64 / golden ratio, and the constants of its finaliser.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


def uniforms(seeds: list[int], positions: list[int]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2**-53.

    seeds: any integers, taken modulo 2**64; positions: output indices, 0 for a request's first output token.
    The seed is scrambled before the position is added, so neighbouring seeds do not see shifted copies of one
    sequence.
    """
    seed_words = np.array([seed & _WORD for seed in seeds], dtype=np.uint64)
    position_words = np.array(positions, dtype=np.uint64)
    state = _mix(seed_words + _INCREMENT) + (position_words + np.uint64(1)) * _INCREMENT
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * _MULTIPLIER_2
    return x ^ (x >> np.uint64(31))
