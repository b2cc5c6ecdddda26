"""Lookups, from queries to live facts: the index, its snapshots and followers, and lookups in the past."""
