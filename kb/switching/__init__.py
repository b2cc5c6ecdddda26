"""Switching from one checkpoint's keys to another's: the gate that measures a keyset, activating, rolling back."""
