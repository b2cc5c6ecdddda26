"""The knowledge base of this machine, with the nouns that commands use."""
