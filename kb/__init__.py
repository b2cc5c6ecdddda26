"""The knowledge base: facts with provenance, keys and history, and lookups of what is true now or was then."""
