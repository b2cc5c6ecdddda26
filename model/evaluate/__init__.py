"""Measures of checkpoints as functions: recall, answers, unlearning, and texts that are read for perplexity."""
