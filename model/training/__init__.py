"""Training of checkpoints, from the texts and questions they learn from to saves; and unlearning by gradients."""
