"""Decoding with lookups."""
