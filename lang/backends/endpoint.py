"""RuntimeEndpoint: programs on a ramet server."""

from collections.abc import Sequence

from ramet.lang.backends.base import Capabilities, Prompt
from ramet.lang.backends.connected import ConnectedBackend
from ramet.lang.backends.endpoint_engine import HttpEngine
from ramet.lang.backends.http_client import Connection, Server
from ramet.lang.backends.local import LocalBackend
from ramet.runtime.protocol.wire import ServedModel


class RuntimeEndpoint(ConnectedBackend):
    """A ramet server as a backend: the same token ids, scores and errors as with an engine in this process.

    The server gives its tokenizer and chat template once, when this is made; prompts are token ids from then
    on.

    Args:
        base_url: as ``http://127.0.0.1:8000``.
        api_key: the server's, where it wants one.
        token_healing, special_text: as for LocalBackend.
        connection: timeout, retries and how many requests run at once.

    Raises:
        GenerationError: the server cannot be reached, refuses the key, or is no ramet server.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        token_healing: bool = True,
        special_text: bool = False,
        connection: Connection | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        server = Server(
            name=f"the ramet server at {self.base_url}",
            base_url=self.base_url,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            connection=connection or Connection(),
        )
        self._engine = HttpEngine(server)
        self._backend = LocalBackend(
            self._engine,
            token_healing=token_healing,
            special_text=special_text,
            name=f"the ramet server at {self.base_url} with model {self._engine.info.model!r}",
        )

    @property
    def info(self) -> ServedModel:
        return self._engine.info

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    def prompt(self, *, cache_salt: str = "") -> Prompt:
        return self._backend.prompt(cache_salt=cache_salt)

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        await self._backend.prefill(prompts)

    def count_tokens(self, text: str) -> int:
        """How many tokens of the server's model the text has, by itself."""
        return self._backend.count_tokens(text)

    async def flush_cache(self) -> None:
        await self._backend.flush_cache()

    async def server_info(self) -> dict[str, object]:
        """The fields of ServedModel, and under ``stats`` the server's counters."""
        return await self._backend.server_info()

    async def aclose(self) -> None:
        """Closes the connections; the server goes on."""
        await self._engine.aclose()
