"""Commands of operators: serve, jobs, database, backups, fsck, tokens, doctor."""
