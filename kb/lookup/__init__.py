"""Lookups, from queries to live facts and from words to sentences: the index, its followers, BM25, and the past."""
