"""What users give as a backend: one, or an engine, which becomes one."""

from typing import TYPE_CHECKING, TypeAlias, cast

from ramet.lang.backends.base import Backend
from ramet.runtime.protocol import InvalidRequestError

if TYPE_CHECKING:
    from ramet.lang.backends.token_engine import TokenEngine

AnyBackend: TypeAlias = "Backend | TokenEngine"
"""What a program can be run on."""

_OF_BACKENDS = ("capabilities", "prompt", "prefill", "server_info")
_OF_ENGINES = ("tokenizer", "info", "astream", "ascore")


def as_backend(given: object) -> Backend:
    """A backend as it is; ramet.Engine and ramet.EngineProcess wrapped in a LocalBackend, which is used and not
    owned: closing it leaves the engine open.

    Raises:
        InvalidRequestError: it is neither.
    """
    if all(hasattr(given, name) for name in _OF_BACKENDS) and not isinstance(given, type):
        return cast(Backend, given)
    if all(hasattr(given, name) for name in _OF_ENGINES) and not isinstance(given, type):
        # Here, so that programs on other backends load no tokenizer.
        from ramet.lang.backends.local import LocalBackend

        return LocalBackend(cast("TokenEngine", given))
    match given:
        case type():
            kind, remedy = f"the class {given.__name__}", f"; make one: {given.__name__}(...)"
        case str():
            kind, remedy = f"the text {given[:80]!r}", f"; open it first: ramet.Engine({given[:80]!r})"
        case _:
            kind, remedy = type(given).__name__, ""
    raise InvalidRequestError(
        f"backend is {kind}; it must be a backend, or a ramet.Engine or ramet.EngineProcess{remedy}",
        field="backend",
    )
