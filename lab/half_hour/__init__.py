"""Half an hour on a rented accelerator: its training texts, marked and asked about, prepared on a CPU; and the runs.

`python -m colmlm.lab.half_hour prepare` makes parcels on the own machine, `receive` joins them on the other one, and
`run STEP ...` carries out the steps there (docs/training.md).
"""
