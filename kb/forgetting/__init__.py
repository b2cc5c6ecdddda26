"""Forgetting: plans the deletion of a set of facts, deletes it, verifies by asking its questions, and certifies it."""
