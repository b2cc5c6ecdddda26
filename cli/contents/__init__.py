"""Commands on what a knowledge base says: facts, documents, corpora, lookups, outputs."""
