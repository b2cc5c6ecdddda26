"""The model: checkpoints, training, decoding with lookups, annotators, and measures of all that."""
