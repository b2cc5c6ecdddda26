"""The language model that also retrieves facts: checkpoints, the forward pass, and keys."""
