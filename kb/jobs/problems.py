"""Problem documents of jobs that failed, in the form of those of requests, but for a status."""

from __future__ import annotations

from typing import Any

from colmlm.kb.errors import KBError
from colmlm.kb.store.causes import refusal_of

Problem = dict[str, Any]


def problem_of(error: Exception) -> Problem:
    """What a job keeps of why it failed. What nobody expected is told to the log alone."""
    error = refusal_of(error) or error
    if isinstance(error, KBError):
        kind = f"urn:colmlm:{type(error).__name__}"
        return {"type": kind, "title": error.title, "detail": str(error)}
    return {
        "type": "urn:colmlm:InternalError",
        "title": "Internal error",
        "detail": "The job failed in a way this program does not know. The cause is in the worker's log.",
    }
