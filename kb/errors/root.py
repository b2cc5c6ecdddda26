"""The root of the tree of errors, its main branches, and how errors list ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class KBError(Exception):
    """The root of the tree: the edges, `api` and `cli`, catch this, and all other code catches the leaf it means."""

    title: ClassVar[str] = "Knowledge base error"


class NotFound(KBError):
    """Something that was named does not exist."""


class Conflict(KBError):
    """The state of the knowledge base does not allow what was asked for."""


class Invalid(KBError):
    """What was asked for makes no sense as it is."""


def format_list(fact_ids: Sequence[int]) -> str:
    """List ids for a message, and no more than the first ten."""
    shown = ", ".join(str(fact_id) for fact_id in fact_ids[:10])
    return shown if len(fact_ids) <= 10 else f"{shown} and {len(fact_ids) - 10} more"
