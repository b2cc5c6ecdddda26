"""Words, characters and lines of texts."""
