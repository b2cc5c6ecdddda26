"""A knowledge base as one file: written, checked, and restored with the log that went on after it."""
