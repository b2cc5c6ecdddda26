"""Lookups, from queries to live facts and from words to sentences: index, BM25, the past, and who watches them."""
