"""Settings of the whole suite."""

# ruff: noqa: E402
from hypothesis import settings

from ramet.runtime.env import bound_openmp_spinning

bound_openmp_spinning()  # before torch is loaded

import torch

settings.register_profile("ramet", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ramet")
torch.set_num_threads(2)
