"""Runs lm_eval on a checkpoint."""
