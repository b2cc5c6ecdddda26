"""The knowledge base of this machine, as commands ask for it."""
