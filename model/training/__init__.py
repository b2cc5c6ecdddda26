"""Training and unlearning."""
