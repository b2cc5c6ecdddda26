"""Answers to questions: finds sentences by key and by words, has them read, and decides last what is live."""
