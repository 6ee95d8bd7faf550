"""The engines that enforce grammars, and the router among them. Imports nothing of them before it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet.runtime.grammar.engines.lazy import LazyRouter

if TYPE_CHECKING:
    from ramet.runtime.grammar.engines.router import EngineRouter

__all__ = ["EngineRouter", "LazyRouter"]


def __getattr__(name: str) -> Any:
    if name != "EngineRouter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("ramet.runtime.grammar.engines.router").EngineRouter
