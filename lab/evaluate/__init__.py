"""The command that measures a checkpoint."""
