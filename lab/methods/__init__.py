"""The methods by which answers, deletions, updates and growth are measured on a knowledge base."""
