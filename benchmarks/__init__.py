"""Benchmarks: `python -m benchmarks.gpu` and `python -m benchmarks.cpu`."""
