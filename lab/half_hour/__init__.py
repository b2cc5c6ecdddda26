"""Half an hour of a rented accelerator: all that is to be trained there, prepared on a CPU and rehearsed to its end.

`python -m colmlm.lab.half_hour prepare` makes parcels on the own machine, `receive` joins them on the other one, and
`run STEP ...` carries out the steps there (docs/training.md).
"""
