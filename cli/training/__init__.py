"""Commands that train checkpoints, the annotators and the reader."""
