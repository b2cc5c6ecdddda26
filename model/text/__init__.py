"""Texts as models take them: token ids, the markup tokens of each method, and batches padded to one length."""
