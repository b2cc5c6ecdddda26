"""A process that purges the base of a home: `python -m tests.kb.removal.purging HOME [STEP]`.

It prints each step as a line, and at the first that begins with STEP it waits for a line on stdin. The last line it
prints is the level that was reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings

HERE = "(waits)"


def main(home: str, step: str = HERE) -> None:
    settings = Settings(home=Path(home), actor="tester")

    def tell(said: str) -> None:
        print(said, flush=True)
        if said.startswith(step):
            print(HERE, flush=True)
            sys.stdin.readline()

    with KnowledgeBase(settings, database.connect_database(settings)) as kb:
        tell(str(Erasure(kb).finish(on_step=tell).level))


if __name__ == "__main__":
    main(*sys.argv[1:])
