"""Errors that stop an annotator, except those of its endpoint (`model.lm.chat_endpoint`)."""

from __future__ import annotations


class ResultsUnusable(Exception):
    """A file of results cannot be continued."""
