"""The database and its settings: connections, the embedded server, and errors that explain its failures."""
