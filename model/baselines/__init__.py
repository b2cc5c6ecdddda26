"""The baselines of the paper: sentence encoders, retrieved passages in the prompt, and queries in words."""
