"""Measures of checkpoints: recall (texts encoded and scored), answers and their judges, unlearning, perplexity."""
