"""Commands of operators: serve, jobs, database, backups, fsck, API keys, doctor."""
