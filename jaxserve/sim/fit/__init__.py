"""Latency tables fitted to measurements: load tests of engines and timings of kernels."""
