"""RuntimeEndpoint: programs on a ramet server."""

from collections.abc import Mapping, Sequence

from ramet.lang.backends.base import Capabilities, Prompt
from ramet.lang.backends.connected import ConnectedBackend
from ramet.lang.backends.endpoint_engine import HttpEngine
from ramet.lang.backends.endpoint_program import SentToServer
from ramet.lang.backends.http_client import Connection, Server
from ramet.lang.backends.local import LocalBackend
from ramet.runtime.protocol import programs
from ramet.runtime.protocol.wire import ServedModel


class RuntimeEndpoint(ConnectedBackend):
    """A ramet server as a backend: the same token ids, scores and errors as with an engine in this process.

    The server gives its tokenizer and chat template once, when this is made; prompts are token ids from then
    on.

    Args:
        base_url: as ``http://127.0.0.1:8000``.
        api_key: the server's, where it wants one.
        token_healing, special_text: as for LocalBackend.
        whole_programs: programs that have said everything before they need a value are sent as a whole and
            run there, without a way there and back for each call. All others, and with False every one, are
            called one by one. What comes of them is the same.
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
        whole_programs: bool = True,
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
        # The server renders what it runs by its own settings, which are the defaults.
        self._takes_whole = (
            whole_programs
            and token_healing
            and not special_text
            and self._engine.info.programs == programs.PROGRAM_VERSION
        )
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

    @property
    def takes_whole(self) -> bool:
        """Whether programs are sent as a whole."""
        return self._takes_whole

    def send_whole(
        self, program: programs.WireProgram, calls: Mapping[tuple[str, int], str], *, cache_salt: str
    ) -> SentToServer:
        """See compiler.whole.TakesWhole."""
        request = programs.ProgramRequest(program=program, events="calls", cache_salt=cache_salt)
        return SentToServer(self._engine, self._backend, request, calls)

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
