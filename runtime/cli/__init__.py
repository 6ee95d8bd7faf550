"""The command line: ``ramet generate | chat | run | serve | info``."""

import sys

__all__ = ["main"]

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it."""


def main() -> None:
    """Entry point; see ``app.main``. Ctrl-C says nothing, from the first moment on."""
    try:
        # Loading all commands takes half a second, in which Ctrl-C may come already.
        from ramet.runtime.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
