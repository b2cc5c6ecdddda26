"""The paper's baselines."""
