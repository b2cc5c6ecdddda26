"""A knowledge base of a benchmark's own, in a temporary folder, whose server ends with it."""

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
def empty_base() -> Iterator[KnowledgeBase]:
    """Gives an empty knowledge base. Its server is stopped before its folder is removed, so that it does not run on."""
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.store.embedded_server import EmbeddedServer
    from colmlm.kb.store.settings import Settings

    with tempfile.TemporaryDirectory(prefix="colmlm-bench-") as home:
        settings = Settings(home=Path(home), actor=ACTOR)
        try:
            with KnowledgeBase.open(settings) as kb:
                yield kb
        finally:
            if (server := EmbeddedServer.of(settings)) is not None:
                server.stop()
