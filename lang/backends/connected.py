"""What backends that hold connections have in common: they are closed, and may be used in a ``with``."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from ramet.lang.loop_thread import branches_loop


class ConnectedBackend(ABC):
    """Closed by ``aclose``, by ``close``, or at the end of a ``with``."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the connections."""

    def close(self) -> None:
        """As ``aclose``, from synchronous code."""
        branches_loop().run(self.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
