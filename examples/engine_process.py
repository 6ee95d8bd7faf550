"""The engine in a process of its own: this one never loads torch, and outlives a crash of the engine.

Run it with ``python examples/engine_process.py``.
"""

import os
import signal
import sys

from ramet import EngineProcess, SamplingParams
from ramet.runtime.protocol import EngineDeadError


def main(model: str = "smollm2") -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    with EngineProcess(model, kv_tokens=2048) as engine:
        output = engine.generate("The three primary colours are", params)
        print(output.text.strip())
        print(f"engine in process {engine.pid}, this is {os.getpid()}; torch here: {'torch' in sys.modules}")

        # What a crash looks like from here: an error at once, never a hang.
        os.kill(engine.pid, signal.SIGKILL)
        try:
            engine.generate("Is anybody there?", params)
        except EngineDeadError as error:
            print(f"EngineDeadError: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
