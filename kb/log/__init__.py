"""The change log: appended to, chained by hashes, witnessed and signed."""
