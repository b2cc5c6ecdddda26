"""Annotators: what marks facts in raw texts and asks about them."""
