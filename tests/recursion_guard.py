"""Watches that C code which recurses too deep ends in RecursionError, and says since which test it does not.

Encoders and ``repr`` count their levels with the interpreter's own counter. Were that counter wrong, the next
deep value would end the process without a word of what had broken it.
"""

import faulthandler
import os
import sys
from typing import Any

import pytest

_LEVELS = 3000
"""Three times what the interpreter allows, and far less than a thread's stack holds."""


class RecursionGuard:
    """A plugin of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._limit = sys.getrecursionlimit()
        self._is_lost = False
        self._deep: list[Any] = []
        for _ in range(_LEVELS):
            self._deep = [self._deep]

    def holds(self) -> bool:
        if sys.getrecursionlimit() != self._limit:
            return False
        try:
            repr(self._deep)
        except RecursionError:
            return True
        return False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if not self._is_lost and not self.holds():
            self._is_lost = True
            terminal = self._config.pluginmanager.getplugin("terminalreporter")
            terminal.write_line(
                f"\nrecursion is no longer bounded, since {nodeid}; the limit is {sys.getrecursionlimit()}"
            )


def show_the_thread_that_died(config: pytest.Config) -> None:
    """On a fatal signal, its Python frames alone: those of all threads are more than a log keeps."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        error_output = os.dup(2)
    faulthandler.enable(error_output, all_threads=False)
