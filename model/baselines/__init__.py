"""The baselines of the paper."""
