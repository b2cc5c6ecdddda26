"""A worker process with a slow fake encoder: `python -m tests.kb.jobs.process URL HOME`."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from colmlm.cli.composition.handlers import HANDLERS
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.jobs.kinds import Rekey
from colmlm.kb.jobs.worker import JobRun, Worker
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder, Vectors


class SlowEncoder(FakeEncoder):
    """Delays each batch, so that a test can act while it is encoded."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        time.sleep(0.05)
        return super().encode_documents(documents)


def rekey(run: JobRun, work: Rekey) -> object:
    return run.kb.keysets.rekey(
        SlowEncoder(), batch=5, on_facts=lambda done, total: run.progress(done, total, "facts")
    )


def worker(kb: KnowledgeBase, **options: object) -> Worker:
    """Makes a worker that polls often."""
    handlers = {**HANDLERS, Rekey.kind: rekey}
    return Worker(kb, handlers, beat_seconds=0.05, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with KnowledgeBase.open(Settings(home=Path(sys.argv[2]), database_url=sys.argv[1])) as opened:
        worker(opened, grace_seconds=0.0).run()
