"""Problem documents of failed jobs, in the form that the API uses for failed requests, but without a status."""

from __future__ import annotations

from typing import Any

from colmlm.kb.errors import KBError
from colmlm.kb.store.waits import refusal_of

Problem = dict[str, Any]


def problem_of(error: Exception) -> Problem:
    """Give the problem document that a failed job stores. The cause of an unexpected error goes to the log only."""
    error = refusal_of(error) or error
    if isinstance(error, KBError):
        kind = f"urn:colmlm:{error.code}"
        return {"type": kind, "title": error.title, "detail": str(error)}
    return {
        "type": "urn:colmlm:InternalError",
        "title": "Internal error",
        "detail": "The job failed in a way this program does not know. The cause is in the worker's log.",
    }
