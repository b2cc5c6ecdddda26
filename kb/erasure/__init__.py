"""Facts and what says them removed for good, from tables and files, by one person or by two."""
