"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(said: str) -> datetime:
    """Reads a date, or a time as ISO 8601 has it; one without a zone is UTC. Raises `ValueError`."""
    at = datetime.fromisoformat(said)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
