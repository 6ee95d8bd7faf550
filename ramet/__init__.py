"""ramet: a structured-generation and agent-workload serving runtime.

The names below are loaded on first use, so that ``import ramet`` costs neither torch nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.runtime.engine import Engine as Engine
    from ramet.runtime.engine import EngineProcess as EngineProcess
    from ramet.runtime.protocol import ProgramTag as ProgramTag
    from ramet.runtime.protocol import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOME = {
    "Engine": "ramet.runtime.engine",
    "EngineProcess": "ramet.runtime.engine",
    "ProgramTag": "ramet.runtime.protocol",
    "SamplingParams": "ramet.runtime.protocol",
}

__all__ = ["Engine", "EngineProcess", "ProgramTag", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ramet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
