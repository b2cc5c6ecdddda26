"""`colmlm-lab faults`: kills processes at seeded instants, and compares the base with a model of what must hold.

`world` is the brute-force model, `plan` draws the steps and the kill, `child` does the steps in a process that is
killed, `killpoints` are the instants, `judge` compares the base with the model, `laboratory` runs rounds. `migration`
and `sources` do and judge what reaches beyond the tables of one base.
"""
