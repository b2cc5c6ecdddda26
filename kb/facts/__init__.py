"""Facts, documents and corpora: edited, read, ingested, exported, and redacted with every text that quotes them."""
