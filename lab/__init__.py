"""The laboratory: what measures the program and repeats the paper. Nothing imports it."""
