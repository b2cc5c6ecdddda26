"""The nouns of this machine's base that do more than those of its knowledge base: encode, scan, show progress."""
