"""``ramet info``: what would run here, and where the time from process start to the first token goes."""

import time
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ramet.runtime.cli import options
from ramet.runtime.cli.machine import describe_machine, resident_bytes, seconds_since_process_start
from ramet.runtime.env import environment
from ramet.runtime.protocol import SamplingParams

if TYPE_CHECKING:
    from ramet.runtime.engine import Engine

PACKAGES = ("ramet", "torch", "numpy", "tokenizers", "transformers")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model as it is loaded here. Bytes are those in memory."""

    name: str
    architecture: str
    num_layers: int
    num_parameters: int
    weight_bytes: int
    dtype: str
    quantization: str
    kernels: str
    vocab_size: int
    context_length: int


class KvPoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int
    page_size: int
    dtype: str
    bytes: int


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of prepared weights."""

    path: str
    bytes: int
    limit_bytes: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``ramet info --json`` prints."""

    versions: dict[str, str]
    machine: dict[str, str | int | None]
    device: str
    threads: int
    resident_bytes: int | None
    model: ModelFacts
    kv_pool: KvPoolFacts
    weight_cache: CacheFacts
    timings: dict[str, float] | None = None
    """Seconds, in the order in which it happens; they add up to ``total``."""


def info(
    model: options.Model = "smollm2",
    timings: Annotated[
        bool, typer.Option("--timings", help="Say where the time from process start to the first token goes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    kv_tokens: options.KvTokens = None,
    threads: options.Threads = None,
) -> None:
    """Load the model and say what runs: versions, machine, model, KV pool, cache of prepared weights."""
    clock = _Clock()
    torch = import_module("torch")
    clock.lap("import torch")
    import_module("ramet.runtime.engine")
    clock.lap("import ramet")
    engine = options.open_engine(
        model=model,
        device=device,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_tokens=kv_tokens,
        threads=threads,
    )
    clock.lap("open the engine")
    with engine:
        engine.generate("Hello", SamplingParams(max_tokens=1, temperature=0.0))
        clock.lap("first token")
        facts = gather(engine, torch.get_num_threads(), clock.phases(engine.info.timings) if timings else None)
    typer.echo(msgspec.json.encode(facts).decode() if as_json else "\n".join(report(facts)))


def gather(engine: "Engine", threads: int, timings: dict[str, float] | None) -> Facts:
    """Everything but the timings is as it is at the moment of the call."""
    about = engine.info
    settings = environment()
    return Facts(
        versions={"python": python_version(), **_versions()},
        machine=asdict(describe_machine()),
        device=about.device,
        threads=threads,
        resident_bytes=resident_bytes(),
        model=ModelFacts(
            name=about.model,
            architecture=about.architecture,
            num_layers=about.num_layers,
            num_parameters=about.num_parameters,
            weight_bytes=about.weight_bytes,
            dtype=about.dtype,
            quantization=about.quantization,
            kernels=about.kernels,
            vocab_size=about.vocab_size,
            context_length=about.context_length,
        ),
        kv_pool=KvPoolFacts(
            tokens=about.kv_tokens,
            page_size=about.page_size,
            dtype=about.kv_cache_dtype,
            bytes=about.kv_bytes,
        ),
        weight_cache=CacheFacts(
            path=str(settings.cache_dir),
            bytes=_folder_bytes(settings.cache_dir),
            limit_bytes=settings.cache_bytes,
        ),
        timings=timings,
    )


def report(facts: Facts) -> list[str]:
    """The same for people, a line a fact."""
    machine, model, pool, cache = facts.machine, facts.model, facts.kv_pool, facts.weight_cache
    versions = [f"{name} {number}" for name, number in facts.versions.items()]
    rows = [
        ("versions", ", ".join(versions)),
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['platform']}"),
        ("memory", f"{_size(machine['available_bytes'])} free of {_size(machine['memory_bytes'])}"),
        ("device", f"{facts.device}, {facts.threads} threads; {_size(facts.resident_bytes)} resident"),
        ("model", f"{model.name}: {model.architecture}, {model.num_layers} layers"),
        (
            "weights",
            f"{model.num_parameters / 1e6:.1f} M parameters in {_size(model.weight_bytes)} "
            f"({model.dtype}, quantization {model.quantization})",
        ),
        ("kernels", model.kernels),
        ("context", f"{model.context_length} tokens, vocabulary of {model.vocab_size}"),
        ("KV pool", f"{pool.tokens} tokens in pages of {pool.page_size}, {_size(pool.bytes)} ({pool.dtype})"),
        ("weight cache", f"{cache.path}: {_size(cache.bytes)} of at most {_size(cache.limit_bytes)}"),
    ]
    lines = [f"{name:<14}{value}" for name, value in rows]
    if facts.timings is not None:
        lines += ["", "seconds from process start to the first token:"]
        lines += [f"{seconds:>9.3f}  {name}" for name, seconds in facts.timings.items()]
    return lines


class _Clock:
    """Laps from the start of the process on; begun when the command begins."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        if (age := seconds_since_process_start()) is not None:
            self._laps["start Python and read the command line"] = age

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name] = now - self._last
        self._last = now

    def phases(self, engine_phases: dict[str, float]) -> dict[str, float]:
        """The laps, with opening the engine split into what the engine says of itself and the rest."""
        result: dict[str, float] = {}
        for name, seconds in self._laps.items():
            if name == "open the engine":
                result |= {f"engine: {phase}": value for phase, value in engine_phases.items()}
                result["engine: the rest"] = max(0.0, seconds - sum(engine_phases.values()))
            else:
                result[name] = seconds
        result["total"] = sum(result.values())
        return result


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def _size(num_bytes: object) -> str:
    """Such as 1.5 GiB; an unknown number is a question mark."""
    if not isinstance(num_bytes, int | float):
        return "?"
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
