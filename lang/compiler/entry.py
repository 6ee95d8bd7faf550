"""``ramet.trace``, ``compile``, ``explain`` and ``cache``: what can be done with a program before it runs."""

from collections.abc import Sequence
from typing import Any

from ramet.lang.compiler.explain import Explanation
from ramet.lang.compiler.prefix import CachedPrefix
from ramet.lang.compiler.trace import Trace
from ramet.lang.program import Program


def trace(program: Program, *args: Any, **kwargs: Any) -> Trace:
    """``program.trace(...)``"""
    return program.trace(*args, **kwargs)


def compile(program: Program, *, outputs: Sequence[str] | None = None) -> Program:
    """``program.compile(...)``"""
    return program.compile(outputs=outputs)


def explain(program: Program, *args: Any, **kwargs: Any) -> Explanation:
    """``program.explain(...)``"""
    return program.explain(*args, **kwargs)


def cache(program: Program, *args: Any, **kwargs: Any) -> CachedPrefix:
    """``program.cache(...)``"""
    return program.cache(*args, **kwargs)
