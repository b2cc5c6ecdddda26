"""Releases: imports stores of facts that others publish, with keys that are reconstructed from codes."""
