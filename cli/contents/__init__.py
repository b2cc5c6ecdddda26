"""Commands on the contents of a knowledge base: facts, documents, corpora, lookups, answers, outputs; and the demo."""
