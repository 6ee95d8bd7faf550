"""Logits to tokens: every row with its own parameters, and no row's tokens dependent on another row.

The order of a row: penalties, logit_bias, banned tokens, grammar mask; log probabilities are taken here; then
temperature, top_k, top_p, min_p, and the draw. Greedy rows take the highest logit, ties to the lowest id.
Others use one number of a counter-based generator for each (seed, output position) and invert the cumulative
distribution over the kept tokens in the order of their ids. Reductions over a row run in a fixed order over a
fixed width, so that neither the batch nor the row's place in it can change a bit of the result.

Drafts are verified by sampling. Position i of a row is sampled with the number, the penalties and the mask
that it has in plain decoding once the drafts before it are accepted; drafts are kept while they equal what
was sampled. The tokens are therefore those of plain decoding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.kernels import native
from ramet.runtime.executor.filters import SHARES, Truncation, choose, is_truncated
from ramet.runtime.executor.kernel_draws import KernelDraws, kernel_draws_for
from ramet.runtime.executor.logit_edits import LogitEdits
from ramet.runtime.executor.logprobs import token_logprobs
from ramet.runtime.executor.randomness import uniforms
from ramet.runtime.executor.row_ops import (
    LARGEST_LOGIT,
    WIDTH,
    FloatArray,
    RowOps,
    padded_rows,
    row_chunks,
    row_ops_for,
)
from ramet.runtime.protocol import SamplingParams, TokenLogprobs
from ramet.runtime.scheduler.batch import BatchRow, RowResult

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NOTHING_ALLOWED = (
    "no token is allowed: the grammar takes only tokens that end the answer here, and min_tokens forbids them"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A position that is sampled at random."""

    position: int
    row: BatchRow
    index: int
    """Number of the output token, from 0."""

    @property
    def params(self) -> SamplingParams:
        return self.row.params

    @property
    def seed(self) -> int:
        return self.row.seed


@dataclass(frozen=True, slots=True)
class _Draw:
    """A place with its number in [0, 1) and the highest logit there."""

    place: _Place
    uniform: float
    maximum: float

    @property
    def position(self) -> int:
        return self.place.position

    @property
    def params(self) -> SamplingParams:
        return self.place.params


class Sampler:
    """Samples every row of a step. State: what is kept a slot to make the next step cheap, never what changes
    results.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        ops: RowOps | None = None,
        kernel_draws: KernelDraws | None = None,
    ) -> None:
        """ops, kernel_draws: None: those of the device, of which the latter may be none."""
        self._vocab_size = vocab_size
        self._ops = row_ops_for(device) if ops is None else ops
        self._kernel_draws = kernel_draws_for(device) if kernel_draws is None else kernel_draws
        self._edits = LogitEdits(vocab_size, self._ops)

    @property
    def ops(self) -> RowOps:
        return self._ops

    def forget(self, slot: int) -> None:
        """The slot changes hands: drop what is kept of its last request."""
        self._edits.forget(slot)

    def sample(self, logits: Tensor, rows: Sequence[BatchRow]) -> list[RowResult]:
        """Tokens, log probabilities and errors of rows that sample; prompt log probabilities are not its
        business.

        logits: [sum of sampled_positions, vocab_size] fp32, contiguous, row after row; overwritten. A row
        that cannot be sampled has its error in its result; nothing is raised for it.
        """
        if not rows:
            return []
        firsts = list(accumulate((row.sampled_positions for row in rows[:-1]), initial=0))
        if self._kernel_draws is not None and self._kernel_draws.takes(logits):
            tokens, errors = self._on_device(self._kernel_draws, logits, rows, firsts)
        else:
            tokens, errors = self._on_host(logits, rows, firsts)
        results = [_verified(row, first, tokens, errors) for row, first in zip(rows, firsts, strict=True)]
        return self._with_logprobs(logits, rows, firsts, results)

    def _on_host(
        self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]
    ) -> tuple[list[int], dict[int, str]]:
        """Tokens and errors by position."""
        errors = dict.fromkeys(not_finite_rows(logits), NOT_FINITE)
        self._edits.apply(logits, rows, firsts)
        best_ids, best = self._ops.argmax(logits)
        tokens: list[int] = best_ids.tolist()
        _find_unusable(best, errors)
        found = [place for place in _random_places(rows, firsts) if place.position not in errors]
        numbers = uniforms([place.seed for place in found], [place.index for place in found]).tolist()
        draws = [
            _Draw(place, number, float(best[place.position]))
            for place, number in zip(found, numbers, strict=True)
        ]
        self._draw(logits, draws, tokens)
        return tokens, errors

    def _on_device(
        self, kernel_draws: KernelDraws, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int]
    ) -> tuple[list[int], dict[int, str]]:
        """The same, with everything given to the device before it is waited for, once. What is drawn for
        positions that turn out to have an error is not looked at."""
        finite = torch.isfinite(logits).all(dim=-1)
        self._edits.apply(logits, rows, firsts)
        best, ids = logits.max(dim=-1)
        places = _random_places(rows, firsts)
        if places:
            ids = kernel_draws.put(ids, logits, places)
        # Ids are far below 2^53.
        found = torch.stack((finite.double(), ids.double(), best.double())).cpu().numpy()
        errors = dict.fromkeys(np.flatnonzero(found[0] == 0.0).tolist(), NOT_FINITE)
        _find_unusable(found[2], errors)
        tokens: list[int] = found[1].astype(np.int64).tolist()
        return tokens, errors

    def _draw(self, logits: Tensor, draws: list[_Draw], tokens: list[int]) -> None:
        """Replace ``tokens`` at the draws' positions."""
        whole: list[_Draw] = []
        truncated: list[Truncation] = []
        for draw in draws:
            if is_truncated(draw.params, self._vocab_size):
                truncated.append(
                    Truncation(draw.position, draw.params, draw.uniform, draw.maximum, self._vocab_size)
                )
            else:
                whole.append(draw)
        for chunk in row_chunks(len(whole), logits):
            _draw_whole(logits, whole[chunk], tokens)
        if truncated:
            self._draw_truncated(logits, truncated, tokens)

    def _draw_truncated(self, logits: Tensor, rows: list[Truncation], tokens: list[int]) -> None:
        rows = _with_masses(logits, rows)
        by_top_k = [row for row in rows if row.uses_top_k]
        by_share = [row for row in rows if not row.uses_top_k]
        if by_top_k:
            positions = [row.position for row in by_top_k]
            bounds = self._ops.kth_largest_bounds(logits, positions, [row.params.top_k for row in by_top_k])
            self._choose(logits, by_top_k, bounds, tokens, wide=True)
        for share in SHARES:
            if by_share:
                limits = np.array([row.bound(share) for row in by_share], dtype=np.float32)
                by_share = self._choose(logits, by_share, limits, tokens, wide=share == 0.0)

    def _choose(
        self, logits: Tensor, rows: list[Truncation], bounds: FloatArray, tokens: list[int], *, wide: bool
    ) -> list[Truncation]:
        """Draw from the tokens at or above each bound; returns the rows whose bound was too narrow."""
        left = []
        candidates = self._ops.at_least(logits, [row.position for row in rows], bounds)
        for row, (ids, values) in zip(rows, candidates, strict=True):
            token_id = choose(row, ids, values, wide=wide)
            if token_id is None:
                left.append(row)
            else:
                tokens[row.position] = token_id
        return left

    def _with_logprobs(
        self, logits: Tensor, rows: Sequence[BatchRow], firsts: Sequence[int], results: list[RowResult]
    ) -> list[RowResult]:
        positions: list[int] = []
        ids: list[int] = []
        counts: list[int] = []
        for row, first, result in zip(rows, firsts, results, strict=True):
            if row.params.logprobs is not None:
                positions.extend(range(first, first + len(result.token_ids)))
                ids.extend(result.token_ids)
                counts.extend([row.params.logprobs] * len(result.token_ids))
        found = iter(token_logprobs(logits, positions, ids, counts, self._ops))
        return [
            result
            if row.params.logprobs is None
            else replace(result, logprobs=_take(found, len(result.token_ids)))
            for row, result in zip(rows, results, strict=True)
        ]


def _random_places(rows: Sequence[BatchRow], firsts: Sequence[int]) -> list[_Place]:
    return [
        _Place(first + offset, row, row.end - row.num_drafts - row.num_prompt_tokens + offset)
        for row, first in zip(rows, firsts, strict=True)
        if not row.params.is_greedy
        for offset in range(row.sampled_positions)
    ]


def _find_unusable(best: npt.NDArray[np.floating], errors: dict[int, str]) -> None:
    """Add the errors of positions whose highest logit is none."""
    for position in np.flatnonzero(~(np.abs(best) <= LARGEST_LOGIT)).tolist():
        errors.setdefault(position, NOTHING_ALLOWED if best[position] == -np.inf else NOT_FINITE)


def not_finite_rows(logits: Tensor) -> list[int]:
    """Rows of ``logits`` [rows, vocab_size] with a NaN or an infinity in them."""
    library = native.library()
    if library is not None and logits.is_cpu and logits.dtype is torch.float32:
        # torch's sum would be a decoding step's only call of OpenMP, whose threads then spin beside ours.
        broken: list[int] = np.flatnonzero(~library.finite_rows(logits)).tolist()
        return broken
    # A sum is finite only if every term is; it costs a fraction of looking at each.
    if bool(torch.isfinite(logits.sum(dim=-1)).all()):
        return []
    finite = torch.isfinite(logits).all(dim=-1)
    rows: list[int] = torch.nonzero(~finite)[:, 0].tolist()
    return rows


def _with_masses(logits: Tensor, rows: list[Truncation]) -> list[Truncation]:
    """The rows with ``mass`` where top_p needs it."""
    needing = [row for row in rows if row.needs_mass]
    if not needing:
        return rows
    masses: list[float] = []
    for chunk in row_chunks(len(needing), logits):
        part = needing[chunk]
        scaled = padded_rows(logits, [row.position for row in part], [row.params.temperature for row in part])
        # The most probable token's weight is 1 and its probability 1 / mass.
        masses += (1.0 / scaled.softmax(dim=-1).amax(dim=-1).double()).tolist()
    found = iter(masses)
    return [replace(row, mass=next(found)) if row.needs_mass else row for row in rows]


def _draw_whole(logits: Tensor, draws: list[_Draw], tokens: list[int]) -> None:
    """Draw from whole distributions: the block of the vocabulary first, then the token in it, both in fp64."""
    scaled = padded_rows(logits, [draw.position for draw in draws], [draw.params.temperature for draw in draws])
    blocks = scaled.softmax(dim=-1).view(len(draws), -1, WIDTH)
    sums = np.cumsum(blocks.sum(dim=-1, dtype=torch.float64).cpu().numpy(), axis=1)
    targets = sums[:, -1] * np.array([draw.uniform for draw in draws])
    # The first block whose cumulative sum exceeds the target. A target is below the last sum, so there is one.
    chosen = np.minimum((sums <= targets[:, None]).sum(axis=1), sums.shape[1] - 1)
    each = torch.arange(len(draws), device=logits.device)
    inside = blocks[each, torch.from_numpy(chosen).to(logits.device)].cpu().numpy()
    for at, draw in enumerate(draws):
        block = int(chosen[at])
        before = sums[at, block - 1] if block else 0.0
        cumulative = before + np.cumsum(inside[at], dtype=np.float64)
        offset = int(np.searchsorted(cumulative, targets[at], side="right"))
        # Rounding can leave the target at the block's very end: then it is the block's last token of any
        # weight.
        if offset == WIDTH:
            offset = int(np.flatnonzero(inside[at])[-1])
        tokens[draw.position] = block * WIDTH + offset


def _verified(row: BatchRow, first: int, tokens: Sequence[int], errors: dict[int, str]) -> RowResult:
    """The sampled tokens as far as the drafts before them were right.

    An error behind accepted drafts is not this step's: the tokens before it are committed, and the next step
    meets it.
    """
    drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
    accepted: list[int] = []
    for offset in range(row.sampled_positions):
        error = errors.get(first + offset)
        if error is not None:
            return RowResult(accepted) if accepted else RowResult([], error=error)
        token_id = tokens[first + offset]
        accepted.append(token_id)
        if offset < row.num_drafts and token_id != drafts[offset]:
            break
    return RowResult(accepted)


def _take(found: Iterator[TokenLogprobs], count: int) -> list[TokenLogprobs]:
    return [next(found) for _ in range(count)]
