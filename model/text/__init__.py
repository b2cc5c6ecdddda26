"""Texts for the model: tokens, and the markup tokens of each method."""
