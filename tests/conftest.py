"""Settings of the whole suite."""

# ruff: noqa: E402
import faulthandler
import os
import signal
import sys

from hypothesis import settings

from ramet.runtime.env import bound_openmp_spinning

bound_openmp_spinning()  # before torch is loaded

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits it; the tests of Ctrl-C
# are about a program that has not been started so.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

settings.register_profile("ramet", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ramet")
torch.set_num_threads(2)


RECURSION_LIMIT = sys.getrecursionlimit()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """On a fatal signal the frames of its thread are shown alone: those of all are more than a log keeps."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        error_output = os.dup(2)
    faulthandler.enable(error_output, all_threads=False)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Where the limit is lost, the next value or template that nests without end ends the whole run."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    if limit != RECURSION_LIMIT:
        pytest.fail(f"the recursion limit was {RECURSION_LIMIT} and has been left at {limit}; restore it")
