"""EngineProcess: the engine in a process of its own, behind the same face."""

import os
from collections.abc import Callable
from typing import Any

from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.remote import RemoteClient
from ramet.runtime.engine.supervisor import SupervisedClient
from ramet.runtime.protocol import EngineDeadError
from ramet.runtime.tokenizer import FastTokenizer, TokenizerSpec

DEFAULT_BUILDER = "ramet.runtime.engine.build:build_engine"


class EngineProcess(EngineFace):
    """As Engine, but the model lives in a child process: this one never imports torch, and survives the
    engine's crash.

    The child is started without importing the caller's main module, so a script needs no ``__main__`` guard. If
    the child dies, whoever waits gets an EngineDeadError with its exit code at once. If this process dies, the
    child ends by itself.

    Args:
        model: as Engine's.
        start_timeout: seconds within which the model must be loaded (and downloaded, for a hub id seen first).
        supervised: a child that dies is started again, and what was in flight goes on where it stopped
            (see SupervisedClient).
        hang_timeout: seconds that one step may take; an engine that takes longer counts as dead and is ended.
            None: it is waited for.
        builder: ``module:function`` that builds the engine in the child from the EngineConfig.
        settings: the fields of EngineConfig.

    Raises:
        InvalidRequestError, ModelLoadError, ...: what Engine would raise, with the same message.
        EngineDeadError: the child died while it started, or was not ready in time.
    """

    def __init__(
        self,
        model: "str | os.PathLike[str]" = "smollm2",
        *,
        start_timeout: float = 600.0,
        supervised: bool = False,
        hang_timeout: float | None = None,
        builder: str = DEFAULT_BUILDER,
        **settings: Any,
    ) -> None:
        config = EngineConfig.of(model, settings)

        def start(on_death: Callable[[EngineDeadError], None] | None = None) -> RemoteClient:
            return RemoteClient(
                config,
                builder=builder,
                start_timeout=start_timeout,
                hang_timeout=hang_timeout,
                on_death=on_death,
            )

        client = SupervisedClient(start, seed=config.seed) if supervised else start()
        try:
            tokenizer = FastTokenizer(client.ready.tokenizer)
        except BaseException:
            client.close()
            raise
        super().__init__(client, tokenizer)
        self._process_client = client
        self._tokenizer_spec = client.ready.tokenizer

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._process_client.pid

    @property
    def tokenizer_spec(self) -> TokenizerSpec:
        """The model's tokenizer as data."""
        return self._tokenizer_spec
