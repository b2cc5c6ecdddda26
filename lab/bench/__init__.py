"""Benchmarks of the store and the model, beside other stores and transformers at the same work."""
