"""The laboratory: measures the program and repeats the paper's experiments. No other package imports it."""
