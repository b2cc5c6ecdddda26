"""Commands that annotate raw texts and train annotators."""
