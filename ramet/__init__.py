"""ramet: a structured-generation and agent-workload serving runtime.

The names below are loaded on first use, so that ``import ramet`` costs neither torch nor a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.lang import BranchError as BranchError
    from ramet.lang import GenerationError as GenerationError
    from ramet.lang import Program as Program
    from ramet.lang import ProgramCancelledError as ProgramCancelledError
    from ramet.lang import ProgramError as ProgramError
    from ramet.lang import ProgramState as ProgramState
    from ramet.lang import ProgramStateGroup as ProgramStateGroup
    from ramet.lang import ProgramStructureError as ProgramStructureError
    from ramet.lang import Tool as Tool
    from ramet.lang import ToolError as ToolError
    from ramet.lang import UnknownVariableError as UnknownVariableError
    from ramet.lang import UnsupportedError as UnsupportedError
    from ramet.lang import assistant as assistant
    from ramet.lang import assistant_begin as assistant_begin
    from ramet.lang import assistant_end as assistant_end
    from ramet.lang import ause_tools as ause_tools
    from ramet.lang import cache as cache
    from ramet.lang import compile as compile
    from ramet.lang import describe_tools as describe_tools
    from ramet.lang import explain as explain
    from ramet.lang import flush_cache as flush_cache
    from ramet.lang import function as function
    from ramet.lang import gen as gen
    from ramet.lang import gen_int as gen_int
    from ramet.lang import gen_string as gen_string
    from ramet.lang import get_server_info as get_server_info
    from ramet.lang import greedy_token_selection as greedy_token_selection
    from ramet.lang import image as image
    from ramet.lang import select as select
    from ramet.lang import separate_reasoning as separate_reasoning
    from ramet.lang import set_default_backend as set_default_backend
    from ramet.lang import system as system
    from ramet.lang import system_begin as system_begin
    from ramet.lang import system_end as system_end
    from ramet.lang import token_length_normalized as token_length_normalized
    from ramet.lang import total_likelihood as total_likelihood
    from ramet.lang import trace as trace
    from ramet.lang import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from ramet.lang import use_tools as use_tools
    from ramet.lang import user as user
    from ramet.lang import user_begin as user_begin
    from ramet.lang import user_end as user_end
    from ramet.lang import video as video
    from ramet.lang.backends.anthropic_api import Anthropic as Anthropic
    from ramet.lang.backends.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from ramet.lang.backends.http_client import Connection as Connection
    from ramet.lang.backends.http_client import RetryPolicy as RetryPolicy
    from ramet.lang.backends.launch import Runtime as Runtime
    from ramet.lang.backends.litellm_api import LiteLLM as LiteLLM
    from ramet.lang.backends.openai_api import OpenAI as OpenAI
    from ramet.runtime.engine import Engine as Engine
    from ramet.runtime.engine import EngineProcess as EngineProcess
    from ramet.runtime.protocol import ProgramTag as ProgramTag
    from ramet.runtime.protocol import SamplingParams as SamplingParams

__version__ = "0.1.0"

_LANG = (
    "BranchError",
    "GenerationError",
    "Program",
    "ProgramCancelledError",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "ProgramStructureError",
    "Tool",
    "ToolError",
    "UnknownVariableError",
    "UnsupportedError",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ause_tools",
    "cache",
    "compile",
    "describe_tools",
    "explain",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "total_likelihood",
    "trace",
    "unconditional_likelihood_normalized",
    "use_tools",
    "user",
    "user_begin",
    "user_end",
    "video",
)
_BACKENDS = {
    "Anthropic": "ramet.lang.backends.anthropic_api",
    "Connection": "ramet.lang.backends.http_client",
    "LiteLLM": "ramet.lang.backends.litellm_api",
    "OpenAI": "ramet.lang.backends.openai_api",
    "RetryPolicy": "ramet.lang.backends.http_client",
    "Runtime": "ramet.lang.backends.launch",
    "RuntimeEndpoint": "ramet.lang.backends.endpoint",
}
_HOME = {
    "Engine": "ramet.runtime.engine",
    "EngineProcess": "ramet.runtime.engine",
    "ProgramTag": "ramet.runtime.protocol",
    "SamplingParams": "ramet.runtime.protocol",
    **_BACKENDS,
    **dict.fromkeys(_LANG, "ramet.lang"),
}

__all__ = ["Engine", "EngineProcess", "ProgramTag", "SamplingParams", "__version__", *_BACKENDS, *_LANG]


_ELSEWHERE = {
    "Crusoe": "give its URL to ramet.OpenAI(base_url=...)",
    "ServerArgs": "give them to ramet.Engine or ramet.Runtime by name",
    "VertexAI": "use ramet.LiteLLM('vertex_ai/...')",
    "global_config": "options are given to the backend, the program or the call",
}
"""Of SGLang's names those that are not here, and what to do instead."""


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _ELSEWHERE:
        raise AttributeError(f"module 'ramet' has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module 'ramet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
