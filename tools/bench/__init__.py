"""Benchmarks. Each file is one program."""
