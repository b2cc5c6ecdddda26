"""Upkeep: checks and repairs what is stored, and counts it."""
