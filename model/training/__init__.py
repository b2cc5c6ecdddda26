"""Training of checkpoints: texts and pairs of questions and facts, loss, steps, saves; and unlearning by gradients."""
