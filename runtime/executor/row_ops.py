"""What the sampler does to rows of logits, on either side: NumPy over host memory, torch over a device's.

Both give the same results. NumPy is there because its comparisons, argmax and conditional writes are several
times faster on a CPU than torch's (32 rows of 49,152: argmax 0.10 ms against 0.65, a masked fill 1 against
4-8, counting 0.2 against 20). Nothing here sorts a vocabulary.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ramet.kernels import apply_bitmask
from ramet.runtime.forward import HostStaging, device_copy

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_NEGATIVE_INFINITY = np.float32(-np.inf).view(np.int32)

# Logits that a mask removed are -inf; every other one is finite, so this bound keeps all of those.
LOWEST = float(np.finfo(np.float32).min)
# Far beyond any model's logits, and still finite in fp32 once divided by the lowest temperature.
LARGEST_LOGIT = 1e30
# Width of the blocks whose maxima bound the k-th largest value of a row.
BLOCK = 64
# Temporaries of one chunk of rows, elements. On a CPU they stay in cache, and small enough that the C library
# reuses their memory: with fresh pages for every temporary, 32 rows of 49,152 take 28 ms instead of 1.6.
HOST_ELEMENTS = 1 << 18
DEVICE_ELEMENTS = 1 << 26
# Rows that are normalised are this many columns wide, or a multiple.
WIDTH = 256


class RowOps(Protocol):
    """Operations on logits [rows, vocab_size] fp32, contiguous. Each row's result depends on that row alone."""

    def argmax(self, logits: Tensor) -> tuple[IntArray, FloatArray]:
        """The highest value's id and the value of every row; ties go to the lowest id."""
        ...

    def disallow(self, logits: Tensor, first: int, mask: npt.NDArray[np.int32]) -> None:
        """Set rows first.. to -inf where their bit is 0. mask: [m, ceil(vocab_size / 32)], bit t % 32 of word
        t // 32.
        """
        ...

    def kth_largest_bounds(self, logits: Tensor, rows: Sequence[int], ks: Sequence[int]) -> FloatArray:
        """For each of ``rows`` a value v such that at least k values of the row (all, where it has fewer) are
        >= v.

        It is at or a little below the k-th largest, and never below LOWEST.
        """
        ...

    def at_least(
        self, logits: Tensor, rows: Sequence[int], bounds: Sequence[float] | FloatArray
    ) -> list[tuple[IntArray, FloatArray]]:
        """Ids (ascending) and values of each row's entries that are >= its bound."""
        ...

    def ranks(self, logits: Tensor, rows: Sequence[int], ids: Sequence[int]) -> IntArray:
        """How many tokens of the row come before ``id``: a higher value, or an equal one and a lower id."""
        ...


class HostRows:
    """RowOps over memory that NumPy can see."""

    def argmax(self, logits: Tensor) -> tuple[IntArray, FloatArray]:
        array: FloatArray = logits.numpy()
        ids = array.argmax(axis=1)
        return ids, array[np.arange(len(ids)), ids]

    def disallow(self, logits: Tensor, first: int, mask: npt.NDArray[np.int32]) -> None:
        patterns: npt.NDArray[np.int32] = logits.numpy().view(np.int32)
        vocab_size = patterns.shape[1]
        for chunk in row_chunks(len(mask), logits):
            words = np.ascontiguousarray(mask[chunk]).view(np.uint8)
            bits = np.unpackbits(words, axis=1, bitorder="little")[:, :vocab_size]
            # Bit patterns, because a conditional write takes up to seven times as long, depending on the mask.
            kept = -bits.astype(np.int32)
            rows = patterns[first + chunk.start : first + chunk.stop]
            rows &= kept
            rows |= ~kept & _NEGATIVE_INFINITY

    def kth_largest_bounds(self, logits: Tensor, rows: Sequence[int], ks: Sequence[int]) -> FloatArray:
        bounds = np.empty(len(rows), dtype=np.float32)
        for at, (row, k) in enumerate(zip(rows, ks, strict=True)):
            bounds[at] = _kth_largest_bound(logits[row], k)
        return np.maximum(bounds, np.float32(LOWEST))

    def at_least(
        self, logits: Tensor, rows: Sequence[int], bounds: Sequence[float] | FloatArray
    ) -> list[tuple[IntArray, FloatArray]]:
        array: FloatArray = logits.numpy()
        found = []
        for row, bound in zip(rows, np.asarray(bounds, dtype=np.float32), strict=True):
            ids = np.flatnonzero(array[row] >= bound)
            found.append((ids, array[row, ids]))
        return found

    def ranks(self, logits: Tensor, rows: Sequence[int], ids: Sequence[int]) -> IntArray:
        array: FloatArray = logits.numpy()
        ranks = np.empty(len(rows), dtype=np.int64)
        for at, (row, token_id) in enumerate(zip(rows, ids, strict=True)):
            values = array[row]
            higher = np.count_nonzero(values > values[token_id])
            ranks[at] = higher + np.count_nonzero(values[:token_id] == values[token_id])
        return ranks


class DeviceRows:
    """RowOps in torch, for memory that NumPy cannot see; each call waits for the device at most once, and
    ``disallow`` never."""

    def __init__(self, staging: HostStaging | None = None) -> None:
        """staging: how masks get to the device; None: as ordinary memory does."""
        self._staging = staging

    def argmax(self, logits: Tensor) -> tuple[IntArray, FloatArray]:
        # torch.max documents the first of several maxima as the index it returns; argmax does the same on
        # every device.
        values, ids = logits.max(dim=-1)
        return ids.cpu().numpy(), values.cpu().numpy()

    def disallow(self, logits: Tensor, first: int, mask: npt.NDArray[np.int32]) -> None:
        words = device_copy(mask, logits.device, self._staging)
        apply_bitmask(logits, first, words)

    def kth_largest_bounds(self, logits: Tensor, rows: Sequence[int], ks: Sequence[int]) -> FloatArray:
        chosen = rows_of(logits, rows)
        vocab_size = chosen.shape[1]
        counts = torch.tensor([min(k, vocab_size) for k in ks], device=logits.device)
        largest = chosen.topk(min(max(ks), vocab_size), dim=-1, sorted=True).values
        bounds = largest.gather(1, (counts - 1)[:, None])[:, 0].cpu().numpy()
        floored: FloatArray = np.maximum(bounds, np.float32(LOWEST))
        return floored

    def at_least(
        self, logits: Tensor, rows: Sequence[int], bounds: Sequence[float] | FloatArray
    ) -> list[tuple[IntArray, FloatArray]]:
        chosen = rows_of(logits, rows)
        limits = torch.from_numpy(np.asarray(bounds, dtype=np.float32)).to(logits.device)
        where = (chosen >= limits[:, None]).nonzero(as_tuple=True)
        row_ids, ids, values = (part.cpu().numpy() for part in (*where, chosen[where]))
        ends = np.searchsorted(row_ids, np.arange(len(rows) + 1))
        return [(ids[a:b], values[a:b]) for a, b in pairwise(ends.tolist())]

    def ranks(self, logits: Tensor, rows: Sequence[int], ids: Sequence[int]) -> IntArray:
        chosen = rows_of(logits, rows)
        targets = torch.tensor(list(ids), device=logits.device)[:, None]
        values = chosen.gather(1, targets)
        earlier = torch.arange(chosen.shape[1], device=logits.device)[None, :] < targets
        before = (chosen > values) | ((chosen == values) & earlier)
        ranks: IntArray = before.sum(dim=-1).cpu().numpy()
        return ranks


def row_ops_for(device: torch.device) -> RowOps:
    return HostRows() if device.type == "cpu" else DeviceRows(HostStaging(device))


def _kth_largest_bound(values: Tensor, k: int) -> np.float32:
    """k blocks have a maximum at or above the k-th largest block maximum, hence k values are."""
    size = values.shape[0]
    num_blocks = size // BLOCK
    if k >= size:
        return np.float32(LOWEST)
    if k <= num_blocks // 2:
        candidates: FloatArray = values[: num_blocks * BLOCK].view(num_blocks, BLOCK).amax(dim=1).numpy()
    else:
        candidates = values.numpy()
    kth: np.float32 = np.partition(candidates, len(candidates) - k)[len(candidates) - k]
    return kth


def row_chunks(num_rows: int, logits: Tensor) -> Iterator[slice]:
    """Slices of ``num_rows``, each as many rows as are normalised at a time."""
    elements = HOST_ELEMENTS if logits.device.type == "cpu" else DEVICE_ELEMENTS
    step = max(1, elements // max(1, logits.shape[1]))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def rows_of(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """The rows, without a copy where they follow one another."""
    first, count = (rows[0], len(rows)) if rows else (0, 0)
    if list(rows) == list(range(first, first + count)):
        return logits[first : first + count]
    return logits[torch.tensor(list(rows), device=logits.device)]


def padded_rows(logits: Tensor, rows: Sequence[int], temperatures: Sequence[float]) -> Tensor:
    """logits / temperature, [len(rows), vocab_size rounded up to WIDTH], -inf behind the vocabulary.

    Rows of one width, all aligned alike, are reduced by the same instructions in the same order wherever they
    stand in a batch; that is what makes softmax over them independent of the batch. Division is exactly
    rounded, hence as well.
    """
    chosen = rows_of(logits, rows)
    num_rows, vocab_size = chosen.shape
    width = -(-vocab_size // WIDTH) * WIDTH
    divisors = torch.tensor(list(temperatures), dtype=torch.float32, device=logits.device)[:, None]
    if width == vocab_size:
        return chosen / divisors
    padded = logits.new_full((num_rows, width), float("-inf"))
    torch.div(chosen, divisors, out=padded[:, :vocab_size])
    return padded
