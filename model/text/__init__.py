"""Texts as models take them: token ids, the markup of each method, batches, and passages before a prompt."""
