"""A knowledge base behind its API, with the nouns of one on this machine; for programs, commands and decoders."""
