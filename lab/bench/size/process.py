"""The process that does one stage: ``python -m colmlm.lab.bench.size.process DIRECTORY FACTS DIM SEED STAGE``.

It prints the stage's figures as JSON, with what it took of memory, processor and disk. As it ends, so does the server.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.lab.bench.size.sized import SizedBase
from colmlm.lab.bench.size.stages import STAGES, Stage
from colmlm.lab.bench.size.watching import Taken, disk_bytes, peak_bytes, watched


def done(stage: Stage, sized: SizedBase) -> dict[str, Any]:
    """Does a stage and gives its figures."""
    server = EmbeddedServer.of(sized.settings)
    assert server is not None
    began = time.perf_counter()
    with KnowledgeBase.open(sized.settings) as kb, watched(server, sized.directory) as taken:
        started, used = began if stage.opens else time.perf_counter(), time.process_time()
        found = stage.do(kb, sized)
        took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    return took | found | _taken(taken)


def _taken(taken: Taken) -> dict[str, Any]:
    return {
        "server_cpu_seconds": taken.server_cpu_seconds,
        "peak_bytes": peak_bytes(),
        "peak_server_bytes": taken.peak_server_bytes,
        "peak_disk_bytes": taken.peak_disk_bytes,
        **{f"{name}_bytes": size for name, size in disk_bytes(taken.directory).items()},
    }


def main() -> None:
    directory, facts, dim, seed, name = sys.argv[1:]
    sized = SizedBase(Path(directory), int(facts), int(dim), int(seed))
    sys.stdout.write(f"{json.dumps(done(STAGES[name], sized))}\n")


if __name__ == "__main__":
    main()
