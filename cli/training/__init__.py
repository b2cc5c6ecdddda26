"""The command that trains checkpoints."""
