"""Commands of operators: serve, jobs, database, backups, fsck, sizes, tokens, doctor."""
