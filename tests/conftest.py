"""Settings of the whole suite."""

import torch
from hypothesis import settings

settings.register_profile("ramet", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ramet")
torch.set_num_threads(2)
