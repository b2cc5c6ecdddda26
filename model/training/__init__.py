"""Training of checkpoints, and unlearning by gradients."""
