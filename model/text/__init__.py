"""Texts for the model: tokens, the markup tokens of each method, sentences."""
