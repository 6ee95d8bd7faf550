"""Draws of tokens by temperature, top_k, top_p and min_p, and the grammar's bitmask. Nothing is sorted.

A token's weight is exp((logit - maximum) / temperature) in whole steps of 2^-44: sums of whole numbers are
exact in whatever order they are taken, so a row's token depends on its logits, its parameters and its seed
alone. The lowest logit that is kept is found by bisection over the order-preserving bits of fp32, over a row's
few candidates where those provably hold all that is kept, else over the row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.gpu.launch import Launch, next_power_of_two, require_unit_stride

MAX_VOCAB = 1 << 19
"""2^19 weights of at most 2^44 add up to the end of int64."""
_BLOCK = 2048
"""Logits that a program holds at a time: 8 a thread."""
_CHUNK = 64
"""k chunks have a maximum at or above the k-th largest maximum of a chunk, hence k logits are."""
CAPACITY = 8192
"""Candidates that are gathered; a row with more is searched whole."""
_MASK_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class DrawParams:
    """One row's parameters each, on the logits' device."""

    positions: Tensor  # [num_draws] int32: rows of the logits
    seeds: Tensor  # [num_draws] int64, taken modulo 2^64
    indices: Tensor  # [num_draws] int64: numbers of the output tokens, from 0
    numbers: Tensor  # [num_draws, 3] fp64: temperature > 0, top_p in (0, 1], min_p in [0, 1]
    top_ks: Tensor  # [num_draws] int32; 0: all


def draw_tokens(logits: Tensor, params: DrawParams) -> Tensor:
    """Token ids, [num_draws] int64: ``reference.draw_tokens`` with numbers that SplitMix64 makes of the seeds.

    logits: [num_rows, vocab_size] fp32; -inf is never drawn. Of a row with NaN, or without a finite maximum,
    some id is drawn.
    """
    num_draws = params.positions.shape[0]
    num_chunks = -(-logits.shape[1] // _CHUNK)
    chosen = torch.empty(num_draws, dtype=torch.int64, device=logits.device)
    maxima = torch.empty((num_draws, num_chunks), dtype=torch.float32, device=logits.device)
    values = torch.empty((num_draws, CAPACITY), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_draws, CAPACITY), dtype=torch.int32, device=logits.device)
    draw_launch(logits, params, chosen, maxima, (values, ids)).run()
    return chosen


def draw_launch(
    logits: Tensor, params: DrawParams, chosen: Tensor, maxima: Tensor, candidates: tuple[Tensor, Tensor]
) -> Launch:
    """The call of ``draw_tokens``. maxima: [num_draws, chunks]; candidates: [num_draws, CAPACITY] each."""
    require_unit_stride("logits", logits)
    vocab_size = logits.shape[1]
    if logits.dtype is not torch.float32 or not 1 < vocab_size < MAX_VOCAB:
        raise ValueError(f"logits are {logits.dtype} over {vocab_size} tokens: fp32 over 2 to {MAX_VOCAB - 1}")
    num_draws = params.positions.shape[0]
    if params.numbers.shape != (num_draws, 3) or params.numbers.dtype is not torch.float64:
        raise ValueError(
            f"numbers is {tuple(params.numbers.shape)} {params.numbers.dtype}: [num_draws, 3] fp64"
        )
    return Launch(
        _draw_kernel,
        (num_draws,),
        {
            "logits": logits,
            "positions": params.positions,
            "seeds": params.seeds,
            "indices": params.indices,
            "numbers": params.numbers,
            "top_ks": params.top_ks,
            "chosen": chosen,
            "maxima": maxima,
            "values": candidates[0],
            "ids": candidates[1],
            "row_stride": logits.stride(0),
            "vocab_size": vocab_size,
        },
        {
            "BLOCK": _BLOCK,
            "CHUNK": _CHUNK,
            "NUM_CHUNKS": maxima.shape[1],
            "CHUNK_SLOTS": next_power_of_two(maxima.shape[1]),
            "CAPACITY": candidates[0].shape[1],
        },
        8,
        1,
    )


def apply_bitmask(logits: Tensor, first: int, mask: Tensor) -> None:
    """See ``kernels.apply_bitmask``."""
    bitmask_launch(logits[first : first + mask.shape[0]], mask).run()


def bitmask_launch(logits: Tensor, mask: Tensor) -> Launch:
    """logits: [num_rows, vocab_size] fp32, changed in place; mask: [num_rows, words] int32, contiguous."""
    require_unit_stride("logits", logits)
    num_rows, vocab_size = logits.shape
    if mask.shape[0] != num_rows or mask.shape[1] * 32 < vocab_size or not mask.is_contiguous():
        raise ValueError(
            f"mask is {tuple(mask.shape)} for {num_rows} rows of {vocab_size} tokens: a contiguous row of "
            f"{-(-vocab_size // 32)} words each"
        )
    return Launch(
        _bitmask_kernel,
        (num_rows, -(-vocab_size // _MASK_BLOCK)),
        {
            "logits": logits,
            "mask": mask,
            "row_stride": logits.stride(0),
            "mask_stride": mask.shape[1],
            "vocab_size": vocab_size,
        },
        {"BLOCK": _MASK_BLOCK},
        4,
        1,
    )


@triton.jit
def _bitmask_kernel(logits, mask, row_stride, mask_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    words = tl.load(mask + row * mask_stride + ids // 32, mask=inside, other=-1)
    forbidden = ((words >> (ids % 32)) & 1) == 0
    tl.store(logits + row * row_stride + ids, float("-inf"), mask=inside & forbidden)


@triton.jit
def _mixed(x):
    # SplitMix64's finaliser; see runtime.executor.randomness.
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, index):
    """A multiple of 2^-53 in [0, 1)."""
    increment = tl.full([1], 0x9E3779B97F4A7C15, tl.uint64)
    state = _mixed(seed.to(tl.uint64, bitcast=True) + increment)
    state = _mixed(state + (index.to(tl.uint64, bitcast=True) + 1) * increment)
    return tl.max((state >> 11).to(tl.float64) * 1.1102230246251565e-16, 0)


@triton.jit
def _key(x):
    """Bits of fp32 as int32 of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weight(x, maximum, temperature):
    """In steps of 2^-44; 0 for -inf."""
    scaled = tl.div_rn(tl.maximum(x - maximum, -1e30), tl.zeros_like(x) + temperature)
    return (tl.exp(scaled) * 17592186044416.0).to(tl.int64)


@triton.jit
def _above(values, length, bound, maximum, temperature, BLOCK: tl.constexpr, BY_WEIGHT: tl.constexpr):
    """Weight, or number, of the values whose key is at least ``bound``: int64."""
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(values + at, mask=at < length, other=float("-inf"))
        counted = (_key(x) >= bound) & (at < length)
        if BY_WEIGHT:
            total += tl.where(counted, _weight(x, maximum, temperature), 0)
        else:
            total += counted.to(tl.int64)
    return tl.sum(total, 0)


@triton.jit
def _search(
    values, length, low, high, target, maximum, temperature, BLOCK: tl.constexpr, BY_WEIGHT: tl.constexpr
):
    """The highest key at or above which lie ``target`` or more; low is known to be such a key."""
    low = low.to(tl.int64)
    high = high.to(tl.int64)
    while low < high:
        middle = high - (high - low) // 2
        if _above(values, length, middle, maximum, temperature, BLOCK, BY_WEIGHT) >= target:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _chunk_bound(maxima, k, NUM_CHUNKS: tl.constexpr, CHUNK_SLOTS: tl.constexpr):
    """The key of the k-th largest maximum of a chunk: k of the row's logits or more are not below it."""
    at = tl.arange(0, CHUNK_SLOTS)
    keys = _key(tl.load(maxima + at, mask=at < NUM_CHUNKS, other=float("-inf")))
    low = tl.min(keys, 0).to(tl.int64)
    high = tl.max(keys, 0).to(tl.int64)
    while low < high:
        middle = high - (high - low) // 2
        if tl.sum((keys >= middle).to(tl.int32), 0) >= k:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _gather(
    row,
    vocab_size,
    values,
    ids,
    key_bound,
    weight_bound,
    maximum,
    temperature,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Put what reaches both bounds into values and ids, ids ascending; how many they are (CAPACITY are put)."""
    count = 0
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocab_size, other=float("-inf"))
        found = (at < vocab_size) & (_key(x) >= key_bound) & (_weight(x, maximum, temperature) >= weight_bound)
        number = tl.sum(found.to(tl.int32), 0)
        if number > 0:
            place = count + tl.cumsum(found.to(tl.int32), 0) - 1
            put = found & (place < CAPACITY)
            tl.store(values + place, x, mask=put)
            tl.store(ids + place, at, mask=put)
        count += number
    tl.debug_barrier()
    return count


@triton.jit
def _kept(x, at, length, ties_before, threshold, ties, least, maximum, temperature):
    """Weights of a block's tokens, 0 of what is dropped; and how many tokens of the threshold it has."""
    key = _key(x)
    equal = ((key == threshold) & (at < length)).to(tl.int32)
    rank = ties_before + tl.cumsum(equal, 0)
    keeps = (key > threshold) | ((key == threshold) & (rank <= ties))
    weight = _weight(x, maximum, temperature)
    return tl.where(keeps & (at < length) & (weight >= least), weight, 0), tl.sum(equal, 0)


@triton.jit
def _draw(values, length, uniform, threshold, ties, least, maximum, temperature, BLOCK: tl.constexpr):
    """The place in ``values`` of the first token whose cumulative weight exceeds uniform times the total."""
    total = tl.sum(tl.zeros([BLOCK], tl.int64), 0)
    seen = 0
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(values + at, mask=at < length, other=float("-inf"))
        weights, equal = _kept(x, at, length, seen, threshold, ties, least, maximum, temperature)
        total += tl.sum(weights, 0)
        seen += equal
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    place = length
    before = tl.sum(tl.zeros([BLOCK], tl.int64), 0)
    seen = 0
    start = 0
    while before <= target:
        at = start + tl.arange(0, BLOCK)
        x = tl.load(values + at, mask=at < length, other=float("-inf"))
        weights, equal = _kept(x, at, length, seen, threshold, ties, least, maximum, temperature)
        reached = before + tl.cumsum(weights, 0) > target
        place = tl.minimum(place, tl.min(tl.where(reached, at, length), 0))
        before += tl.sum(weights, 0)
        seen += equal
        start += BLOCK
    # Of a row without a finite maximum nothing has a weight.
    return tl.minimum(place, length - 1)


@triton.jit
def _weight_of_key(key, maximum, temperature):
    key = key.to(tl.int32)
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return _weight(bits.to(tl.float32, bitcast=True), maximum, temperature)


@triton.jit
def _top_k(values, length, low, high, lowest, top_k, ties, maximum, temperature, BLOCK: tl.constexpr):
    """The lowest key of the k highest logits, how many of its tokens are among them, and the weight of all."""
    threshold = lowest
    mass = _above(values, length, lowest, maximum, temperature, BLOCK, True)
    if _above(values, length, lowest, maximum, temperature, BLOCK, False) > top_k:
        threshold = _search(values, length, low, high, top_k, maximum, temperature, BLOCK, False)
        ties = (top_k - _above(values, length, threshold + 1, maximum, temperature, BLOCK, False)).to(tl.int32)
        mass = _above(values, length, threshold + 1, maximum, temperature, BLOCK, True)
        mass += ties * _weight_of_key(threshold, maximum, temperature)
    return threshold, ties, mass


@triton.jit
def _nucleus(values, length, low, high, lowest, top_p, mass, ties, maximum, temperature, BLOCK: tl.constexpr):
    """The same of the smallest set with top_p of the mass, within what the k highest left: (low, ties)."""
    wanted = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64)
    wanted = tl.maximum(tl.minimum(wanted, mass), 1)
    threshold = _search(values, length, low, high, wanted, maximum, temperature, BLOCK, True)
    if threshold > lowest:
        higher = _above(values, length, threshold + 1, maximum, temperature, BLOCK, True)
        each = tl.maximum(_weight_of_key(threshold, maximum, temperature), 1)
        needed = ((wanted - higher + each - 1) // each).to(tl.int32)
        if threshold == low:
            needed = tl.minimum(needed, ties)
        ties = needed
    return threshold, ties


@triton.jit
def _draw_kernel(
    logits,
    positions,
    seeds,
    indices,
    numbers,
    top_ks,
    chosen,
    maxima,
    values,
    ids,
    row_stride,
    vocab_size,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_CHUNKS: tl.constexpr,
    CHUNK_SLOTS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row = logits + tl.load(positions + number).to(tl.int64) * row_stride
    temperature = tl.load(numbers + number * 3).to(tl.float32)
    top_p = tl.load(numbers + number * 3 + 1)
    min_p = tl.load(numbers + number * 3 + 2)
    top_k = tl.load(top_ks + number)
    has_top_k = (top_k > 0) & (top_k < vocab_size)
    maxima += number * NUM_CHUNKS
    values += number * CAPACITY
    ids += number * CAPACITY

    best = tl.full([BLOCK // CHUNK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(row + at, mask=at < vocab_size, other=float("-inf"))
        of_chunks = tl.max(tl.reshape(x, [BLOCK // CHUNK, CHUNK]), 1)
        chunks = start // CHUNK + tl.arange(0, BLOCK // CHUNK)
        tl.store(maxima + chunks, of_chunks, mask=chunks < NUM_CHUNKS)
        best = tl.maximum(best, of_chunks)
    maximum = tl.max(best, 0)
    highest = _key(maximum).to(tl.int64)
    # -inf has the key -2139095041, which no token of a distribution has.
    lowest = tl.zeros_like(highest) - 2139095040
    tl.debug_barrier()

    # What is searched: candidates that hold all that can be kept, or the whole row.
    source = row
    length = vocab_size
    gathered = 0
    threshold = lowest
    ties = vocab_size
    if has_top_k | (top_p < 1.0):
        key_bound = lowest
        weight_bound = tl.zeros_like(highest)
        mass = tl.zeros_like(highest)
        if has_top_k:
            if top_k <= NUM_CHUNKS // 2:
                key_bound = tl.maximum(_chunk_bound(maxima, top_k, NUM_CHUNKS, CHUNK_SLOTS), lowest)
        else:
            mass = _above(row, vocab_size, lowest, maximum, temperature, BLOCK, True)
            weight_bound = mass // 1024
        count = _gather(
            row, vocab_size, values, ids, key_bound, weight_bound, maximum, temperature, BLOCK, CAPACITY
        )
        wanted = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64)
        held = _above(values, tl.minimum(count, CAPACITY), lowest, maximum, temperature, BLOCK, True)
        if (count <= CAPACITY) & (has_top_k | (held >= wanted)):
            source = values
            length = count
            gathered = 1
        if has_top_k:
            threshold, ties, mass = _top_k(
                source, length, key_bound, highest, lowest, top_k, ties, maximum, temperature, BLOCK
            )
        if top_p < 1.0:
            threshold, ties = _nucleus(
                source, length, threshold, highest, lowest, top_p, mass, ties, maximum, temperature, BLOCK
            )
    uniform = _uniform(tl.load(seeds + number), tl.load(indices + number))
    least = tl.maximum(tl.ceil(min_p * 17592186044416.0).to(tl.int64), 1)
    place = _draw(source, length, uniform, threshold, ties, least, maximum, temperature, BLOCK)
    if gathered == 1:
        place = tl.load(ids + place)
    tl.store(chosen + number, place.to(tl.int64))
