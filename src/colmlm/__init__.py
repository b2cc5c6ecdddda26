"""A knowledge base that a language model reads and people can edit."""
