"""`colmlm evaluate`: the commands that measure a checkpoint."""
