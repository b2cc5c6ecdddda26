"""`colmlm-lab evaluate`: the commands that measure a checkpoint or answers, and the sums they add up."""
