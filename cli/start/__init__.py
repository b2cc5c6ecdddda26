"""The start of the command line: the tables of commands, the completion of names, and the root that runs a command."""
