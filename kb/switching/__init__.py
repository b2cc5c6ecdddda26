"""Switching from one checkpoint's keys to another's: stores keys in bulk, measures a keyset, activates, rolls back."""
