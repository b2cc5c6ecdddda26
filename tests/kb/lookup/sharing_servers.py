"""Servers that share snapshots, as tests look at them."""

from __future__ import annotations

from collections.abc import Callable

from colmlm.kb.keys.records import SharedSnapshot
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.shared import SharedFolder
from colmlm.kb.service import KnowledgeBase

FACTS = 12
Opened = Callable[[str], KnowledgeBase]


def folder_of(kb: KnowledgeBase) -> SharedFolder:
    with kb.sessions() as session:
        folder = shared.folder_of(session, kb.settings)
    assert folder is not None
    return folder


def noted(kb: KnowledgeBase) -> SharedSnapshot:
    with kb.sessions() as session:
        (found,) = shared.noted_snapshots(session).values()
    return found


def here(kb: KnowledgeBase) -> list[str]:
    """Gives the names of the snapshots in the server's index directory."""
    return [file.name for file in kb.settings.index_directory.rglob("*.faiss")]
