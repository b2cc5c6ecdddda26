"""Facts, documents and corpora: edited, read, ingested, exported and redacted."""
