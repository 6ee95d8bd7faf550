"""Stands for ``ramet serve`` in tests: its command line, and a model of random numbers behind its routes.

The model "broken" ends at once, and the model "silent" never answers.
"""

import os
import signal
import sys
import threading

from tests.lang.backends.loopback import serving
from tests.lang.backends.random_engine import open_random
from tests.lang.backends.small_tokenizer import small_tokenizer
from tests.lang.backends.wire_server import wire_handler


def main() -> None:
    command, *arguments = sys.argv[1:]
    assert command == "serve"
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    if options.get("--model") == "broken":
        sys.exit("error: there is no model 'broken'")
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    print("loading", flush=True)
    if options.get("--model") == "silent":
        told.wait(300)
        return
    handler = wire_handler(open_random(small_tokenizer()).face, api_key=os.environ["RAMET_API_KEY"])
    with serving(handler, int(options["--port"])):
        told.wait(300)


if __name__ == "__main__":
    main()
