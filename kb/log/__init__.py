"""The change log: appended to, chained, witnessed and signed."""
