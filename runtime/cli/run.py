"""``ramet run file.py``: a program on an engine that the command opens and closes."""

import asyncio
import importlib.util
import inspect
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from ramet.runtime.cli import options
from ramet.runtime.protocol import InvalidRequestError

MODULE_NAME = "ramet_program"
"""What ``__name__`` is in the file: not ``__main__``, so that a file can be run by Python as well."""


def run(
    file: Annotated[Path, typer.Argument(help="A Python file with a function main(engine, *arguments).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Handed on to main as strings.")] = None,
    model: options.Model = "smollm2",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    kv_tokens: options.KvTokens = None,
    threads: options.Threads = None,
) -> None:
    """Run FILE's main(engine, *arguments); then say what was computed, what was cached and how long it took.

    Options go before FILE; everything after it belongs to the program. main may be a coroutine function. An
    exception in the program is shown with its traceback, and the exit status is 1.
    """
    program = _load_main(file)
    _check_arguments(file, program, arguments or [])
    engine = options.open_engine(
        model=model,
        device=device,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_tokens=kv_tokens,
        threads=threads,
    )
    with engine:
        started = time.perf_counter()
        guarded(lambda: _call(program, engine, arguments or []))
        elapsed = time.perf_counter() - started
        stats = engine.stats()
    computed = stats.prompt_tokens - stats.cached_tokens
    options.notes.print(
        f"{stats.finished_requests} calls in {elapsed:.2f} s: {stats.prompt_tokens} prompt tokens "
        f"({stats.cached_tokens} cached, {computed} computed), {stats.output_tokens} generated",
        style="dim",
        soft_wrap=True,
    )


def load_file(file: Path) -> ModuleType:
    """Runs a Python file as a module. An exception of its own is shown, and exits with status 1."""
    if not file.is_file():
        raise InvalidRequestError(f"{file} is not a file; give a Python file", field="file")
    spec = importlib.util.spec_from_file_location(MODULE_NAME, file)
    if spec is None or spec.loader is None:
        raise InvalidRequestError(f"{file} is not a Python file; its name must end in .py", field="file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pickling and typing look a class's module up by its name.
    sys.modules[MODULE_NAME] = module
    # As `python file.py` does, so that the file can import what lies beside it.
    sys.path.insert(0, str(file.resolve().parent))
    loader = spec.loader
    guarded(lambda: loader.exec_module(module))
    return module


def _load_main(file: Path) -> Callable[..., Any]:
    main = getattr(load_file(file), "main", None)
    if not callable(main):
        raise InvalidRequestError(
            f"{file} has no function main; define main(engine, *arguments) there", field="file"
        )
    return main  # type: ignore[no-any-return]


def _check_arguments(file: Path, program: Callable[..., Any], arguments: list[str]) -> None:
    try:
        inspect.signature(program).bind(None, *arguments)
    except TypeError as error:
        raise InvalidRequestError(
            f"main(engine, {', '.join(arguments)}) cannot be called in {file}: {error}", field="arguments"
        ) from None


def _call(program: Callable[..., Any], engine: object, arguments: list[str]) -> None:
    result = program(engine, *arguments)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def guarded(code: Callable[[], None]) -> None:
    """Runs the user's code; an exception is printed from the first frame that is theirs on."""
    try:
        code()
    except Exception as error:
        frames = error.__traceback__
        while (
            frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename)
        ):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise typer.Exit(1) from None


def _is_ours(file_name: str) -> bool:
    return file_name == __file__ or file_name.startswith("<frozen importlib")
