"""These tests need triton's interpreter, which is chosen when triton is imported:
``tests/kernels/gpu/test_interpreter.py`` runs them in a process of their own."""

import os

import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
torch.set_num_threads(1)
