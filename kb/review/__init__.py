"""Review: the inbox of proposed facts, verdicts on them, and where only accepted facts answer."""
