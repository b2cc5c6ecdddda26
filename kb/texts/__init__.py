"""Words, characters, sentences and lines of texts."""
