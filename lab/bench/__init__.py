"""Benchmarks: the store at size, and beside other stores that do the same job."""
