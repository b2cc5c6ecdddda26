"""What keeps an annotator from its work, beside its endpoint (`model.lm.chat_endpoint`): cause and remedy in a line."""

from __future__ import annotations


class ResultsUnusable(Exception):
    """A file of results that cannot be gone on with."""
