"""Annotators, which mark facts in raw texts and ask about them: their training, checks, and quality."""
