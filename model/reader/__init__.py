"""Readers, which find the answer to a question in passages as a span of one, or say that none holds it."""
