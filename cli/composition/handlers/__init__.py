"""Handlers of the kinds of jobs: those that need no model, and all of them."""
