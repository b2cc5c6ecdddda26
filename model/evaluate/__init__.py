"""Measures of checkpoints: recall, answers, perplexity, unlearning."""
