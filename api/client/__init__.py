"""The client of a remote knowledge base, with the same verbs as a local one; for programs, commands and decoders."""
