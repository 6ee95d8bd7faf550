"""The command line: ``ramet generate | chat | run | serve | info``."""

from ramet.runtime.cli.app import app, main

__all__ = ["app", "main"]
