"""Where each spliced word came from and what became of it: traces, impact, and who is shown what of it."""
