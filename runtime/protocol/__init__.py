"""The vocabulary that every layer shares: standard library and msgspec only."""

from ramet.runtime.protocol.errors import (
    EngineDeadError,
    EngineRestartingError,
    InvalidRequestError,
    ModelLoadError,
    PromptTooLongError,
    RametError,
    RequestAbortedError,
    RequestFailedError,
    UnsupportedConstraintError,
    UnsupportedModelError,
)
from ramet.runtime.protocol.generation import (
    FinishReason,
    GenerateInput,
    Logprob,
    ProgramTag,
    RequestStats,
    TextOutput,
    TokenLogprobs,
    TokenOutput,
)
from ramet.runtime.protocol.grammar_spec import (
    Choice,
    Ebnf,
    GrammarSpec,
    JsonSchema,
    Prefix,
    Regex,
    StructuralTag,
)
from ramet.runtime.protocol.sampling_params import SamplingParams

__all__ = [
    "Choice",
    "Ebnf",
    "EngineDeadError",
    "EngineRestartingError",
    "FinishReason",
    "GenerateInput",
    "GrammarSpec",
    "InvalidRequestError",
    "JsonSchema",
    "Logprob",
    "ModelLoadError",
    "Prefix",
    "ProgramTag",
    "PromptTooLongError",
    "RametError",
    "Regex",
    "RequestAbortedError",
    "RequestFailedError",
    "RequestStats",
    "SamplingParams",
    "StructuralTag",
    "TextOutput",
    "TokenLogprobs",
    "TokenOutput",
    "UnsupportedConstraintError",
    "UnsupportedModelError",
]
