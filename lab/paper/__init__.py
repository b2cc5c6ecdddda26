"""The paper's tables at this model's size: a Makefile of commands, and the excerpts of data that they read."""
