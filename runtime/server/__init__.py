"""HTTP: OpenAI's routes and the native ones, over an engine.

Names are loaded on first use: the configuration needs no web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.runtime.server.app import create_app as create_app
    from ramet.runtime.server.config import ServerConfig as ServerConfig

_HOME = {"ServerConfig": "config", "create_app": "app"}

__all__ = ["ServerConfig", "create_app"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"ramet.runtime.server.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
