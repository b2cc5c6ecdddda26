"""`colmlm crashlab`: processes killed at seeded instants, and a model that says what must hold afterwards.

`world` is the brute-force model, `plan` draws the work and where it is struck, `child` does the work in a
process that is killed, `killpoints` are the instants, `judge` compares, `laboratory` runs rounds.
"""
