"""Separating a model's reasoning from its answer: the rule is the runtime's, which servers share."""

from ramet.runtime.protocol.reasoning import (
    FORMATS,
    ReasoningFormat,
    ReasoningSplitter,
    reasoning_format,
)

__all__ = ["FORMATS", "ReasoningFormat", "ReasoningSplitter", "reasoning_format"]
