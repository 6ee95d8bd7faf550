"""The ops of one decoder layer: ramet's, what plain torch offers, and the memory's limit, in the same run.

    python -m benchmarks.kernels --out benchmarks/results
    python -m benchmarks.kernels --rows 1,8 --repetitions 3 --layers 4

Shapes are SmolLM2-135M's. Each op runs over the weights or the KV of many layers, one after another, as in a
step, so that they come from memory and not from the cache. A repetition times every system once, in turns; the
table shows medians. Only ratios within one run compare anything.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from benchmarks.record import Record, Sample, new_record, print_table, write
from ramet import kernels
from ramet.kernels import reference
from ramet.runtime.attention import AttentionMetadata, TorchAttentionBackend
from ramet.runtime.forward import AttentionSpec, DeviceKVPool

HIDDEN, INTERMEDIATE, VOCABULARY = 576, 1536, 49152
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
PAGE_SIZE = 16
LINEARS = {
    "qkv": ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, HIDDEN),
    "output": (HIDDEN, NUM_HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
"""[out_features, in_features]."""

MAX_HEAD_ROWS = 32
"""Logits are wanted of the last tokens only."""

RAMET, ORACLE, FP32, INT_MM, LIMIT = "ramet", "oracle", "torch fp32", "torch._int_mm", "memory limit"

Layers = Callable[[], object]
"""Runs one op once for every layer."""


@dataclass(frozen=True, slots=True)
class Case:
    """Systems that do the same. ``calls``: how often each runs the op; ``num_bytes``: what the op reads."""

    name: str
    systems: dict[str, Layers]
    calls: int
    num_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LinearCase(Case):
    """A case with the calls of each of its layers."""

    by_layer: dict[str, list[Callable[[], object]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Rows of (queries, tokens in all); the first num_shared tokens of all rows are the same pages."""

    name: str
    rows: tuple[tuple[int, int], ...]
    num_shared: int = 0


ATTENTION_SHAPES = (
    AttentionShape("decode 1 x 192", ((1, 192),)),
    AttentionShape("decode 1 x 1024", ((1, 1024),)),
    AttentionShape("decode 32 x 130-192", tuple((1, 130 + 2 * i) for i in range(32))),
    AttentionShape("decode 16 x 1040-1070", tuple((1, 1040 + 2 * i) for i in range(16))),
    AttentionShape("decode 16 x 1040-1070, 1024 shared", tuple((1, 1040 + 2 * i) for i in range(16)), 1024),
    AttentionShape("prefill 128", ((128, 128),)),
    AttentionShape("prefill 512", ((512, 512),)),
    AttentionShape("prefill 512 after 1536", ((512, 2048),)),
)


def cases(rows: Sequence[int], num_layers: int, seed: int) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    linears = {name: _Linears.random(shape, num_layers, random) for name, shape in LINEARS.items()}
    for count in rows:
        each = [linear.case(f"{name}, {count} rows", count, random) for name, linear in linears.items()]
        yield from each
        yield _one_after_another(f"a layer's linears, {count} rows", each)
    head = _Linears.random((VOCABULARY, HIDDEN), 1, random)
    for count in rows:
        if count <= MAX_HEAD_ROWS:
            yield head.case(f"head, {count} rows", count, random)
    for count in rows:
        yield from _elementwise_cases(count, num_layers, random)
    for attention_shape in ATTENTION_SHAPES:
        yield _attention_case(attention_shape, num_layers, random)


@dataclass(frozen=True, slots=True)
class _Linears:
    """One weight a layer, in every form that is timed."""

    quantized: list[tuple[Tensor, Tensor]]
    prepared: list[tuple[kernels.PreparedInt8Weight | Tensor, Tensor]]
    floats: list[Tensor]

    @classmethod
    def random(cls, shape: tuple[int, int], num_layers: int, random: Callable[..., Tensor]) -> "_Linears":
        quantized = [kernels.quantize_rows_int8(random(*shape)) for _ in range(num_layers)]
        prepared = [(kernels.prepare_int8_weight(weight, scale), scale) for weight, scale in quantized]
        return cls(quantized, prepared, [random(*shape) for _ in range(num_layers)])

    def case(self, name: str, count: int, random: Callable[..., Tensor]) -> "LinearCase":
        x = random(count, self.floats[0].shape[1])
        q = kernels.quantize_rows_int8(x)[0]
        by_layer: dict[str, list[Callable[[], object]]] = {
            RAMET: [partial(kernels.linear_int8, x, weight, scale) for weight, scale in self.prepared],
            INT_MM: [partial(torch._int_mm, q, weight.t()) for weight, _ in self.quantized],
            FP32: [partial(functional.linear, x, weight) for weight in self.floats],
        }
        systems = {system: _all_of(calls) for system, calls in by_layer.items()}
        return LinearCase(name, systems, len(self.floats), self.floats[0].numel(), by_layer)


def _one_after_another(name: str, each: Sequence["LinearCase"]) -> Case:
    """All linears of layer 0, then all of layer 1, and so on: together they do not fit into any cache."""
    systems = {
        system: _all_of(
            [call for layer in zip(*(case.by_layer[system] for case in each), strict=True) for call in layer]
        )
        for system in each[0].systems
    }
    return Case(name, systems, each[0].calls, sum(case.num_bytes or 0 for case in each))


def _all_of(calls: Sequence[Callable[[], object]]) -> Layers:
    return lambda: [call() for call in calls]


def _elementwise_cases(count: int, num_layers: int, random: Callable[..., Tensor]) -> Iterator[Case]:
    x, residual, weight = random(count, HIDDEN), random(count, HIDDEN), random(HIDDEN)
    gate_up, angles = random(count, 2 * INTERMEDIATE), random(count, HEAD_DIM // 2)
    qkv = random(count, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM)
    q, k, _ = qkv.split_with_sizes((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS), 1)
    cos, sin = angles.cos(), angles.sin()
    calls: dict[str, dict[str, Callable[[], object]]] = {
        "add_rms_norm": {
            RAMET: lambda: kernels.add_rms_norm(x, residual, weight, 1e-5),
            ORACLE: lambda: reference.add_rms_norm(x, residual, weight, 1e-5),
            FP32: lambda: functional.rms_norm(x + residual, (HIDDEN,), weight, 1e-5),
        },
        "apply_rope": {
            RAMET: lambda: kernels.apply_rope(q, k, cos, sin),
            ORACLE: lambda: reference.apply_rope(q, k, cos, sin),
        },
        "gated_activation": {
            RAMET: lambda: kernels.gated_activation(gate_up, "silu"),
            ORACLE: lambda: reference.gated_activation(gate_up, "silu"),
        },
    }
    for name, systems in calls.items():
        repeated = {system: _all_of([call] * num_layers) for system, call in systems.items()}
        yield Case(f"{name}, {count} rows", repeated, num_layers)


def _attention_case(shape: AttentionShape, num_layers: int, random: Callable[..., Tensor]) -> Case:
    query_lens, kv_lens = [q for q, _ in shape.rows], [kv for _, kv in shape.rows]
    max_pages = -(-max(kv_lens) // PAGE_SIZE)
    pages = np.random.default_rng(0).permutation(len(kv_lens) * max_pages).astype(np.int32)
    page_table = pages.reshape(len(kv_lens), max_pages)
    page_table[:, : shape.num_shared // PAGE_SIZE] = page_table[0, : shape.num_shared // PAGE_SIZE]
    pool = DeviceKVPool(
        num_layers=num_layers,
        num_slots=pages.size * PAGE_SIZE,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for layer_id in range(num_layers):
        for tensor in pool.layer(layer_id):
            tensor.copy_(random(*tensor.shape))
    heads = NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS
    q, k, v = random(sum(query_lens), sum(heads), HEAD_DIM).split_with_sizes(heads, 1)
    backend = TorchAttentionBackend(
        pool,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        page_size=PAGE_SIZE,
        device=torch.device("cpu"),
    )
    metadata = AttentionMetadata(query_lens, kv_lens, page_table)

    def ramet() -> None:
        plan = backend.plan(metadata)
        for layer_id in range(num_layers):
            plan(q, k, v, AttentionSpec(layer_id, HEAD_DIM**-0.5))

    slots = (page_table[..., None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(
        len(kv_lens), -1
    )
    row_slots = [torch.from_numpy(row[:kv_len]) for row, kv_len in zip(slots, kv_lens, strict=True)]
    row_queries = q.split_with_sizes(query_lens)

    def row_by_row() -> None:
        for layer_id in range(num_layers):
            keys, values = pool.layer(layer_id)
            for row_q, row in zip(row_queries, row_slots, strict=True):
                _sdpa(row_q, keys[row], values[row])

    distinct = sum(kv_lens) - shape.num_shared * (len(kv_lens) - 1)
    num_bytes = distinct * 2 * NUM_KV_HEADS * HEAD_DIM * 4
    return Case(shape.name, {RAMET: ramet, FP32: row_by_row}, num_layers, num_bytes)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One row with torch's scaled_dot_product_attention; q, k, v: [tokens, heads, head_dim]."""
    mask = None
    if len(q) > 1:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    return functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], mask, enable_gqa=True
    )


def memory_bandwidth(repetitions: int) -> float:
    """Bytes per second of the fastest of some sums over 512 MiB, with all of torch's threads."""
    block = torch.ones(128 << 20)
    return block.numel() * 4 / min(_seconds(block.sum) for _ in range(max(3, repetitions)))


def measure(case: Case, repetitions: int, bandwidth: float) -> list[Sample]:
    """Microseconds of one call of every system, and of reading the bytes that the op needs."""
    for run in case.systems.values():
        run()
    samples = []
    for repetition in range(repetitions):
        seconds = {system: _seconds(run) / case.calls for system, run in case.systems.items()}
        if case.num_bytes is not None:
            seconds[LIMIT] = case.num_bytes / bandwidth
        for system, value in seconds.items():
            metrics = {"us": value * 1e6, "times_ramet": value / seconds[RAMET]}
            samples.append(Sample(case=case.name, system=system, repetition=repetition, metrics=dict(metrics)))
    return samples


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for kernels.json")
    parser.add_argument("--rows", type=_counts, default=[1, 8, 32, 512], help="tokens in a call (1,8,32,512)")
    parser.add_argument("--layers", type=int, default=30, help="layers that one timing runs through (30)")
    parser.add_argument("--repetitions", type=int, default=7, help="timings of every system (7)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a count below 1")
    return counts


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> Record:
    options = parse(arguments)
    bandwidth = memory_bandwidth(options.repetitions)
    samples: list[Sample] = []
    for case in cases(options.rows, options.layers, options.seed):
        if options.only in case.name:
            samples.extend(measure(case, options.repetitions, bandwidth))
    settings = {
        "rows": options.rows,
        "layers": options.layers,
        "repetitions": options.repetitions,
        "threads": torch.get_num_threads(),
        "memory_bytes_per_s": bandwidth,
    }
    notes = ["us: of one call, in one layer", "torch fp32 attends row by row, after gathering the row's KV"]
    record = new_record("kernels", samples=samples, seed=options.seed, settings=settings, notes=notes)
    console = Console()
    columns = [("us", "us a call", ",.1f"), ("times_ramet", "x ramet", ".2f")]
    title = f"One layer's ops; memory read at {bandwidth / 1e9:.1f} GB/s"
    print_table(console, title, record.medians, columns)
    if options.out is not None:
        console.print(f"wrote {write(record, options.out)}")
    return record


if __name__ == "__main__":
    main()
