"""The root of the tree, its main branches, and how errors list ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class KBError(Exception):
    """Root of the tree; catch this at an edge, and the leaf you mean everywhere else."""

    title: ClassVar[str] = "Knowledge base error"


class NotFound(KBError):
    """What was named does not exist."""


class Conflict(KBError):
    """The state of the knowledge base does not allow it."""


class Invalid(KBError):
    """What was asked for cannot be meant."""


def listed(fact_ids: Sequence[int]) -> str:
    """Ids for a message, the first ten of many."""
    shown = ", ".join(str(fact_id) for fact_id in fact_ids[:10])
    return shown if len(fact_ids) <= 10 else f"{shown} and {len(fact_ids) - 10} more"
