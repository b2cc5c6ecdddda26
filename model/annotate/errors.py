"""Errors that stop an annotator, except those of its endpoint (`model.lm.chat_endpoint`)."""

from __future__ import annotations

from colmlm.model.lm.config import CheckpointError


class AnnotatorError(CheckpointError):
    """A directory is no usable annotator, or no reader; the message says what is wrong."""


class ResultsUnusable(Exception):
    """A file of results cannot be continued."""
