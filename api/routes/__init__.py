"""The routes under /v1, a module for each noun."""
