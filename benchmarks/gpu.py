"""The GPU kernels: right, the same bits in any batch, and how near to what the memory allows.

    python -m benchmarks.gpu --out benchmarks/results     on a machine with a GPU, within --seconds
    python -m benchmarks.gpu --compile-only               registers, spills, shared memory; needs no GPU
    python -m benchmarks.gpu --dry-run                    tiny shapes in Triton's interpreter: does it run?

Times are medians with a cold second-level cache, launch included. The memory's limit is a device copy measured
in the same run. Needs torch, triton, numpy and msgspec, and nothing else.
"""

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

COPY_BYTES = 1 << 30
TOLERANCE = 0.05
"""Of bf16 results around 1, whose last place is 0.008."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A case's time. ``of_copy``: the share of the device copy's bandwidth; None without a GPU."""

    case: str
    error: float
    seconds: float
    of_copy: float | None
    others: dict[str, float]


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``left_out``: the cases for which no time was left."""

    benchmark: str = "gpu"
    date: str
    command: list[str]
    device: str
    versions: dict[str, str]
    copy_bytes_per_second: float | None
    same_bits: dict[str, bool]
    measurements: list[Measurement]
    left_out: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the process's exit status: 1 where a result is wrong."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.compile_only:
        return _compile_only(options.targets)
    if options.dry_run:
        # Triton looks when it is imported, so whatever imports it comes after this.
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU here: --dry-run runs tiny shapes without one, --compile-only compiles", file=sys.stderr)
        return 2
    record = _measure(options.dry_run, options.seconds)
    _print(record)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
        (options.out / "gpu.json").write_bytes(encoded + b"\n")
    wrong = [m.case for m in record.measurements if not m.error <= TOLERANCE]
    if wrong:
        print(f"wrong: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--compile-only", action="store_true", help="compile for every target and print the table"
    )
    kind.add_argument("--dry-run", action="store_true", help="tiny shapes in Triton's interpreter")
    parser.add_argument("--targets", default="", help="of --compile-only, with commas; default: all four")
    parser.add_argument(
        "--seconds", type=float, default=420.0, help="no case begins after so long (default 420)"
    )
    parser.add_argument("--out", type=Path, help="folder for gpu.json")
    return parser.parse_args(arguments)


def _compile_only(chosen: str) -> int:
    from benchmarks.gpu_compile import TARGETS, compile_for, launches

    targets = chosen.split(",") if chosen else list(TARGETS)
    if unknown := [target for target in targets if target not in TARGETS]:
        print(f"--targets: no {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    print(f"{'kernel':42} {'target':8} {'registers':>9} {'spilled':>8} {'shared':>8}")
    for name, launch in launches():
        for target in targets:
            found = compile_for(name, launch, target)
            print(
                f"{name:42} {target:8} {found.registers:9} {found.spilled:8} {found.shared_bytes:8}", flush=True
            )
    return 0


def _measure(dry_run: bool, seconds: float) -> GpuRecord:
    import torch
    import triton

    from benchmarks import gpu_cases, gpu_models, gpu_op_cases

    started = time.monotonic()
    device = torch.device("cpu" if dry_run else "cuda")
    # The interpreter has no bf16 products.
    dtype = torch.float16 if dry_run else torch.bfloat16
    models = gpu_cases.TINY_MODELS if dry_run else gpu_cases.MODELS
    workloads = gpu_cases.TINY_WORKLOADS if dry_run else gpu_cases.WORKLOADS
    row_counts = gpu_cases.TINY_ROW_COUNTS if dry_run else gpu_cases.ROW_COUNTS
    timed = _once if dry_run else _median
    copy = None if dry_run else _copy_bandwidth(timed)
    bits = gpu_cases.same_bits(models[0], dtype, device, 300 if dry_run else 3000)
    measurements, left_out = [], 0
    shapes = gpu_op_cases.TINY_SHAPES if dry_run else gpu_op_cases.SHAPES
    wholes = gpu_models.TINY_WHOLES if dry_run else gpu_models.WHOLES
    steps = gpu_models.TINY_STEPS if dry_run else gpu_models.STEPS
    # Without the products of a GPU's own dtype the interpreter's models are fp32.
    whole_dtype = torch.float32 if dry_run else dtype
    for case in itertools.chain(
        gpu_cases.cases(models, workloads, row_counts, dtype, device),
        gpu_op_cases.op_cases(models, shapes, dtype, device),
        gpu_models.model_cases(wholes, steps, whole_dtype, device),
    ):
        if time.monotonic() - started > seconds:
            left_out += 1
            continue
        error = case.error()
        own = timed(case.run)
        others = {name: timed(run) for name, run in case.others.items()}
        of_copy = None if copy is None else case.num_bytes / own / copy
        measurements.append(
            Measurement(case=case.name, error=error, seconds=own, of_copy=of_copy, others=others)
        )
    return GpuRecord(
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=["python", "-m", "benchmarks.gpu", *sys.argv[1:]],
        device="triton's interpreter" if dry_run else torch.cuda.get_device_name(),
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "triton": triton.__version__,
        },
        copy_bytes_per_second=copy,
        same_bits=bits,
        measurements=measurements,
        left_out=left_out,
    )


def _median(run: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return float(do_bench(run, warmup=10, rep=60, return_mode="median")) / 1e3


def _once(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _copy_bandwidth(timed: Callable[[Callable[[], object]], float]) -> float:
    """Bytes read and written a second."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / timed(lambda: target.copy_(source))


def _print(record: GpuRecord) -> None:
    print(f"{record.device}, torch {record.versions['torch']}, triton {record.versions['triton']}")
    if record.copy_bytes_per_second is not None:
        print(f"device copy: {record.copy_bytes_per_second / 1e9:.0f} GB/s read and written")
    for name, same in record.same_bits.items():
        print(f"a token's bits, {name}: {'the same' if same else 'DIFFERENT'}")
    print(f"{'case':52} {'error':>8} {'us':>9} {'of copy':>8}  others, us")
    for m in record.measurements:
        share = "" if m.of_copy is None else f"{m.of_copy:.0%}"
        others = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in m.others.items())
        print(f"{m.case:52} {m.error:8.1e} {m.seconds * 1e6:9.1f} {share:>8}  {others}")
    if record.left_out:
        print(f"{record.left_out} cases left out: no time")


if __name__ == "__main__":
    sys.exit(main())
