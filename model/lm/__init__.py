"""The language model that is also a retriever: checkpoints, the forward pass, and keys."""
