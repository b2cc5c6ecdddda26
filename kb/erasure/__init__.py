"""Erasure: removes facts for good, with every text that says them, from tables and files; by one person or by two."""
