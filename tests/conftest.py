"""Settings of the whole suite."""

# ruff: noqa: E402
import signal

from hypothesis import settings

from ramet.runtime.env import bound_openmp_spinning

bound_openmp_spinning()  # before torch is loaded

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits it; the tests of Ctrl-C
# are about a program that has not been started so.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

from tests.recursion_guard import RecursionGuard, show_the_thread_that_died

settings.register_profile("ramet", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ramet")
torch.set_num_threads(2)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RecursionGuard(config), "recursion guard")
    show_the_thread_that_died(config)
