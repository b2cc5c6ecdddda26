"""Decoding: the model writes, queries go to lookups, hits are spliced in; sampling, and scores of given texts."""
