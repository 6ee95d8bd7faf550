"""Every error that ramet raises on purpose.

RametError
├── InvalidRequestError (ValueError)   the caller's mistake: names the field, the value and the remedy
│   ├── PromptTooLongError             it can never fit the context or the KV pool
│   └── UnsupportedConstraintError     a constraint that cannot be enforced
├── ModelLoadError                     the model's files are missing, damaged or of an unknown kind
│   └── UnsupportedModelError          the architecture, or a feature of it, is not implemented
├── RequestAbortedError                the request was aborted before it finished
├── RequestFailedError                 the runtime failed while it computed this request
└── EngineDeadError                    the engine (thread or process) is gone; nothing more can be computed
    └── EngineRestartingError          ... by it; a new one is being started
"""


class RametError(Exception):
    """Base of all errors below."""


class InvalidRequestError(RametError, ValueError):
    """The request is wrong. ``field`` names the parameter at fault, or is None."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLongError(InvalidRequestError):
    """The prompt and one token exceed the context or the KV pool, or the prompt and max_tokens the context.

    A max_tokens that fits the context but not the pool is no error: the output then ends with LENGTH.
    """


class UnsupportedConstraintError(InvalidRequestError):
    """The constraint cannot be enforced as a whole, so it is refused instead of weakened."""


class ModelLoadError(RametError):
    """The model's files are missing, damaged or of an unknown kind."""


class UnsupportedModelError(ModelLoadError):
    """The architecture, or a feature of it, is not implemented."""


class RequestAbortedError(RametError):
    """The request was aborted before it finished."""


class RequestFailedError(RametError):
    """The runtime failed while it computed this request; other requests go on."""


class EngineDeadError(RametError):
    """The engine is gone: it was closed, or its process died."""


class EngineRestartingError(EngineDeadError):
    """The engine's process died, and a new one is being started. Requests wait for it; it has no numbers."""
