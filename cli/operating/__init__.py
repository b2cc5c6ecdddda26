"""Commands of operators: serve, jobs, database, backups, API keys, doctor."""
