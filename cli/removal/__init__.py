"""Commands that forget and erase, and certificates of it."""
