"""Measures of checkpoints as functions: recall, answers and who judges them, unlearning, and perplexity."""
