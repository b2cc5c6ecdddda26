"""Removal: deletes chosen facts by a plan or erases them for good, verifies that, and certifies it."""
