"""Statistics: the numbers of corpora, documents, facts, outputs, keysets and forget runs."""

from __future__ import annotations

from litestar import get

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.kb.upkeep.upkeep import Statistics


@get("/stats", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_stats(ports: FromPorts) -> Statistics:
    """Count everything.

    Counts corpora, documents, facts, those to review, outputs, keysets and forget runs in one snapshot of the database.
    """
    return ports.kb.upkeep.statistics()
