"""Measurements: ``python -m benchmarks.offline`` and ``python -m benchmarks.radix`` write JSON and a plot."""
