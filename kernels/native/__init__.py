"""Kernels in C for CPUs, compiled on the machine that runs them. Without a compiler the torch versions run."""

from ramet.kernels.native.library import SPAN, AttentionItems, AttentionScratch, NativeLibrary
from ramet.kernels.native.loading import enable, library

__all__ = ["SPAN", "AttentionItems", "AttentionScratch", "NativeLibrary", "enable", "library"]
