"""How deletions, updates and growth are measured on a base."""
