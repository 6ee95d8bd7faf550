"""Engine: the model in this process, on a thread of its own."""

import os
from functools import partial
from typing import Any

from ramet.runtime.engine.build import build_engine
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import CLOSE_SECONDS, EngineLoop
from ramet.runtime.engine.progress import loading_progress
from ramet.runtime.engine.threads import EngineThread


class Engine(EngineFace):
    """A model that generates, streams and scores; see EngineFace for what it can be asked.

    >>> with Engine("smollm2") as engine:
    ...     print(engine.generate("The capital of France is", temperature=0, max_tokens=8).text)

    Args:
        model: an embedded model's name, a .gguf file, a Hugging Face folder, or a hub id such as org/name.
        progress: show what is being loaded, if stderr is a terminal.
        settings: the fields of EngineConfig.

    Raises:
        InvalidRequestError: a setting is unknown, out of range, or cannot be honoured by this model or machine.
        ModelLoadError: the model's files are missing, damaged or of an unknown kind.
    """

    def __init__(
        self, model: "str | os.PathLike[str]" = "smollm2", *, progress: bool = True, **settings: Any
    ) -> None:
        config = EngineConfig.of(model, settings)
        with loading_progress(config.model, wanted=progress) as report:
            thread = EngineThread()
            try:
                built = thread.call(partial(build_engine, config, report))
            except BaseException:
                # After Ctrl-C the thread may still be loading: an interpreter that exits under it crashes.
                thread.end()
                thread.join(CLOSE_SECONDS)
                raise
        super().__init__(EngineLoop(built.core, built.info, thread), built.tokenizer)
