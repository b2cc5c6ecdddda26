"""The change log: appended to, chained by hashes, witnessed, signed; keyed digests; and the log of denied requests."""
