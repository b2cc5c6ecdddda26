"""Takes a synthetic base of any size through its life, from ingest to backup, and measures what each stage takes."""
