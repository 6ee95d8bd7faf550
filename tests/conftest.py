"""Settings of the whole suite."""

# ruff: noqa: E402
import signal

from hypothesis import settings

from ramet.runtime.env import bound_openmp_spinning

bound_openmp_spinning()  # before torch is loaded

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits it; the tests of Ctrl-C
# are about a program that has not been started so.
signal.signal(signal.SIGINT, signal.default_int_handler)

import torch

settings.register_profile("ramet", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ramet")
torch.set_num_threads(2)
