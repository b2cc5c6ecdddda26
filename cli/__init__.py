"""The command `colmlm`: packages of commands by who uses them, and what they are started, connected and composed by."""
