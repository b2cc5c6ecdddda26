"""Folders and bases of a benchmark's own, which are removed when it is done, and their servers before them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase

ACTOR, REASON = "bench", "benchmark"


@contextmanager
def own_folder(directory: Path | None = None) -> Iterator[Path]:
    """Gives a new folder, for one home or several. Every server on a base in it is stopped before it is removed.

    A server that runs on writes while its files are removed, so that the removal fails and takes the figures with it.
    """
    from colmlm.kb.store.embedded_server import EmbeddedServer

    with tempfile.TemporaryDirectory(dir=directory, prefix="colmlm-bench-") as folder:
        try:
            yield Path(folder)
        finally:
            for running in Path(folder).rglob("postmaster.pid"):
                EmbeddedServer(running.parent).stop()


@contextmanager
def empty_base() -> Iterator[KnowledgeBase]:
    """Gives an empty knowledge base."""
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.store.settings import Settings

    with own_folder() as home, KnowledgeBase.open(Settings(home=home, actor=ACTOR)) as kb:
        yield kb
