"""The change log, appended to, chained by hashes, witnessed and signed; and the log of denied requests."""
