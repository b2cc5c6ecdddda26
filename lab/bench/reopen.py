"""Opens a knowledge base, answers one lookup and says so: ``python -m colmlm.lab.bench.reopen HOME CHECKPOINT_ID``.

It prints the fact that it found and by how many bytes its memory grew, then waits to be killed, or ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings


def main() -> None:
    home, checkpoint_id = Path(sys.argv[1]), sys.argv[2]
    with KnowledgeBase.open(Settings(home=home, actor="bench")) as kb:
        before = _resident_bytes()
        (found,) = kb.lookups.find(
            np.load(home / "query.npy")[None], checkpoint_id=checkpoint_id, threshold=-1
        )
        sys.stdout.write(f"{found.hits[0].fact_id} {_resident_bytes() - before}\n")
        sys.stdout.flush()
        while "--leave" not in sys.argv:
            time.sleep(1)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
