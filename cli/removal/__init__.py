"""Commands that forget and erase facts, and that issue and check certificates of forgetting."""
