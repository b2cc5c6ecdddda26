"""The command `colmlm`: a module for each noun, and `composition`, which puts knowledge base and model together."""
