"""Upkeep: checks and repairs what is stored, counts it, and estimates how large it gets."""
