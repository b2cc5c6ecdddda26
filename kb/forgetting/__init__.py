"""Forgetting: plans what deleting a set of facts would do, deletes it, verifies that by checks, and certifies it."""
