"""`colmlm-lab faults`: kills and disturbs what works on a base, and compares what it holds then with what must hold.

`harness` has what all scenarios share; `served` and `processes` are scenarios. Of `crashlab`, `world` is the
brute-force model, `plan` draws the steps and the kill, `child` does the steps in a process that is killed, `killpoints`
are the instants, `judge` compares the base with the model, `laboratory` runs rounds. `migration` and `sources` do and
judge what reaches beyond the tables of one base.
"""
