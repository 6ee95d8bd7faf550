"""``ramet run file.py``: a program on an engine that the command opens and closes."""

import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ramet.runtime.cli import options
from ramet.runtime.protocol import InvalidRequestError


def run(
    file: Annotated[Path, typer.Argument(help="A Python file with a function main(engine, *arguments).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Handed on to main as strings.")] = None,
    model: options.Model = "smollm2",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "auto",
    kv_tokens: options.KvTokens = None,
    threads: options.Threads = None,
) -> None:
    """Run FILE's main(engine, *arguments); then say what was computed, what was cached and how long it took.

    Options go before FILE; everything after it belongs to the program.
    """
    program = _load_main(file)
    engine = options.open_engine(
        model=model, device=device, dtype=dtype, quantization=quantization, kv_tokens=kv_tokens, threads=threads
    )
    with engine:
        started = time.perf_counter()
        program(engine, *(arguments or ()))
        elapsed = time.perf_counter() - started
        stats = engine.stats()
    computed = stats.prompt_tokens - stats.cached_tokens
    options.notes.print(
        f"{stats.finished_requests} calls in {elapsed:.2f} s: {stats.prompt_tokens} prompt tokens "
        f"({stats.cached_tokens} cached, {computed} computed), {stats.output_tokens} generated",
        style="dim",
    )


def _load_main(file: Path) -> Callable[..., Any]:
    if not file.is_file():
        raise InvalidRequestError(f"{file} is not a file; give a Python file with main(engine)", field="file")
    names = runpy.run_path(str(file), run_name="ramet_program")
    main = names.get("main")
    if not callable(main):
        raise InvalidRequestError(
            f"{file} has no function main; define main(engine, *arguments) there", field="file"
        )
    return main  # type: ignore[no-any-return]
