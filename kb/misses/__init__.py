"""Misses: what was asked and found nothing, grouped by nearness into a work list, with what was decided about it."""
