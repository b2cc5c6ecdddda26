"""Commands on the contents of a knowledge base: facts, documents, corpora, lookups, outputs."""
