"""The command `colmlm`: one module per noun, and `runtime`, which puts knowledge base and model together."""
