"""The database and its settings: connections, the embedded server, and what its failures mean."""
