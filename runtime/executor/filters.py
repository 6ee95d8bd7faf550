"""top_k, top_p and min_p over a row's candidates, and the draw from what they keep.

A row's filters need its most probable tokens only. A bound is found below which no token can be kept, the
tokens at or above it are collected in one pass, and the exact rules are applied to those few in fp64:

- top_k keeps the k highest logits, ties to the lower id;
- top_p keeps the smallest set, most probable first (ties to the lower id), whose share of what top_k left is
  >= top_p;
- min_p drops tokens less probable than min_p times the most probable one.

The draw inverts the cumulative distribution of the kept tokens in the order of their ids.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ramet.runtime.executor.row_ops import FloatArray, IntArray
from ramet.runtime.protocol import SamplingParams

# Shares of the mass, tried one after the other as the lowest that a token of the nucleus may have. Few tokens
# have the first (1,024 at most), and most nuclei lie within; with the last, 0, every nucleus does.
SHARES = (2.0**-10, 2.0**-16, 0.0)
# Of a nucleus's candidates, by their logits: only one bin is sorted.
NUM_BINS = 256


@dataclass(frozen=True, slots=True)
class Truncation:
    """One row's filters and its place in the logits."""

    position: int
    params: SamplingParams
    uniform: float
    maximum: float
    """The row's highest logit."""
    vocab_size: int
    mass: float = 0.0
    """Sum of exp((logit - maximum) / temperature) over the vocabulary; read for top_p without top_k only."""

    @property
    def uses_top_k(self) -> bool:
        return 0 < self.params.top_k < self.vocab_size

    @property
    def needs_mass(self) -> bool:
        return self.params.top_p < 1.0 and not self.uses_top_k

    def bound(self, share: float) -> float:
        """A logit below which nothing is kept. Not for top_k, whose bound depends on the other logits.

        For top_p it is the logit of a token that has ``share`` of the mass, which may be too high; ``choose``
        says so. With a share of 0 it never is: tokens below (1 - top_p) / vocab_size cannot sum to 1 - top_p.
        """
        params = self.params
        if not self.needs_mass:
            return self._logit_at(params.min_p)
        return self._logit_at(max(share, (1.0 - params.top_p) / self.vocab_size) * self.mass)

    def _logit_at(self, weight: float) -> float:
        """The logit whose exp((logit - maximum) / temperature) is ``weight``, less a margin for fp32."""
        logit = self.maximum + self.params.temperature * math.log(weight)
        return logit - 1e-6 * (1.0 + abs(logit) + abs(self.maximum))


def is_truncated(params: SamplingParams, vocab_size: int) -> bool:
    """Whether any filter can drop a token."""
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def choose(row: Truncation, ids: IntArray, logits: FloatArray, *, wide: bool) -> int | None:
    """Apply the filters to the candidates and draw a token id.

    ids ascend; logits [len(ids)] are those of every token at or above the row's bound. None: the candidates
    hold less than top_p of the mass, so a wider bound is needed (never with ``wide``).
    """
    params = row.params
    if row.uses_top_k and len(ids) > params.top_k:
        # Stable, over ascending ids: equal logits stay in the order of their ids.
        kept = np.sort(np.argsort(-logits, kind="stable")[: params.top_k])
        ids, logits = ids[kept], logits[kept]
    weights = np.exp((logits.astype(np.float64) - row.maximum) / params.temperature)
    if params.top_p < 1.0:
        total = float(weights.sum())
        wanted = params.top_p * (row.mass if row.needs_mass else total)
        if total < wanted and not wide:
            return None
        kept = _nucleus(logits, weights, wanted)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0.0:
        # The weight of the most probable token is 1.
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = ids[kept], weights[kept]
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, row.uniform * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def _nucleus(logits: FloatArray, weights: npt.NDArray[np.float64], wanted: float) -> IntArray:
    """Indices, ascending, of the smallest set of the most probable tokens whose weights sum to ``wanted`` or
    more.

    The tokens are put into bins by their logits, which leaves only the bin where the sum is reached to be
    sorted.
    """
    span = float(logits.max()) - float(logits.min())
    width = max(span, 1e-30) / NUM_BINS
    bins = np.minimum((float(logits.max()) - logits.astype(np.float64)) / width, NUM_BINS - 1).astype(np.int64)
    sums = np.cumsum(np.bincount(bins, weights, minlength=NUM_BINS))
    last = min(int(np.searchsorted(sums, wanted)), NUM_BINS - 1)
    before = float(sums[last - 1]) if last else 0.0
    # Stable, over ascending ids: equal logits stay in the order of their ids.
    inside = np.flatnonzero(bins == last)
    inside = inside[np.argsort(-logits[inside], kind="stable")]
    num_inside = int(np.searchsorted(before + np.cumsum(weights[inside]), wanted)) + 1
    return np.sort(np.concatenate((np.flatnonzero(bins < last), inside[:num_inside])))
