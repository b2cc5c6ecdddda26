"""Texts for the model: tokens, the tokens that a method adds, sentences."""
