"""Checks, repair and counts of all that is stored."""
