"""Engines: the composition of scheduler, executor, tokenizer and grammars, and the faces that users call.

Names are loaded on first use: ``EngineProcess`` imports no torch, ``Engine`` does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ramet.runtime.env import bound_openmp_spinning

if TYPE_CHECKING:
    from ramet.runtime.engine.client import EngineClient as EngineClient
    from ramet.runtime.engine.client import EngineInfo as EngineInfo
    from ramet.runtime.engine.client import EngineStats as EngineStats
    from ramet.runtime.engine.config import EngineConfig as EngineConfig
    from ramet.runtime.engine.core import EngineCore as EngineCore
    from ramet.runtime.engine.engine import Engine as Engine
    from ramet.runtime.engine.face import EngineFace as EngineFace
    from ramet.runtime.engine.loop import EngineLoop as EngineLoop
    from ramet.runtime.engine.process import EngineProcess as EngineProcess
    from ramet.runtime.engine.results import Completion as Completion
    from ramet.runtime.engine.results import Embedding as Embedding
    from ramet.runtime.engine.results import Increment as Increment
    from ramet.runtime.engine.results import Output as Output
    from ramet.runtime.engine.results import Score as Score
    from ramet.runtime.engine.streams import AsyncTextStream as AsyncTextStream
    from ramet.runtime.engine.streams import TextStream as TextStream

_HOME = {
    "AsyncTextStream": "streams",
    "Completion": "results",
    "Engine": "engine",
    "EngineClient": "client",
    "EngineConfig": "config",
    "EngineCore": "core",
    "EngineFace": "face",
    "EngineInfo": "client",
    "EngineLoop": "loop",
    "EngineProcess": "process",
    "EngineStats": "client",
    "Embedding": "results",
    "Increment": "results",
    "Output": "results",
    "Score": "results",
    "TextStream": "streams",
}

__all__ = [
    "AsyncTextStream",
    "Completion",
    "Embedding",
    "Engine",
    "EngineClient",
    "EngineConfig",
    "EngineCore",
    "EngineFace",
    "EngineInfo",
    "EngineLoop",
    "EngineProcess",
    "EngineStats",
    "Increment",
    "Output",
    "Score",
    "TextStream",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        if name == "Engine":
            bound_openmp_spinning()  # before torch is loaded
        return getattr(import_module(f"ramet.runtime.engine.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
