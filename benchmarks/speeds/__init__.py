"""Benchmarks of speed, each beside what it is compared to."""
