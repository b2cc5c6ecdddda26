"""The process that does one stage: ``python -m colmlm.lab.bench.size.process DIRECTORY FACTS DIM SEED STAGE``.

It prints the stage's figures as JSON, with what it took of memory, processor and disk. As it ends, so does the server.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.lab.bench.size.stages import STAGES, SizedBase, Stage


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


# Watching: what a stage takes of memory, processor and disk, in its own process and in PostgreSQL's.
#
# The server's processes come and go, so they are looked at twice a second: a peak between two looks is
# missed.

LOOK_EVERY = 0.5  # seconds


@dataclass(slots=True)
class Taken:
    """What was taken: bytes of memory and of disk at the most, and seconds of the processor."""

    server: EmbeddedServer
    directory: Path
    peak_server_bytes: int = 0
    peak_disk_bytes: int = 0
    _cpu: dict[int, float] = field(default_factory=dict)
    _before: dict[int, float] = field(default_factory=dict)

    @property
    def server_cpu_seconds(self) -> float:
        return sum(used - self._before.get(pid, 0.0) for pid, used in self._cpu.items())

    def look(self) -> None:
        pid, memory = self.server.pid(), 0
        if pid is not None:
            for process in _family(pid):
                with suppress(psutil.Error):  # it ended, or is another user's
                    # PSS: pages that several processes share, as the server's buffers, are counted once.
                    memory += process.memory_full_info().pss
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
        self.peak_server_bytes = max(self.peak_server_bytes, memory)
        self.peak_disk_bytes = max(self.peak_disk_bytes, sum(disk_bytes(self.directory).values()))

    def start(self) -> None:
        """Counts the processor's seconds from now on."""
        self.look()
        self._before = dict(self._cpu)


@contextmanager
def watched(server: EmbeddedServer, directory: Path) -> Iterator[Taken]:
    """Looks at the server and the directory again and again while the block runs, and once at its end."""
    taken, done = Taken(server, directory), threading.Event()
    taken.start()

    def watch() -> None:
        while not done.wait(LOOK_EVERY):
            taken.look()

    watching = threading.Thread(target=watch, name="watching")
    watching.start()
    try:
        yield taken
    finally:
        done.set()
        watching.join()
        taken.look()


def peak_bytes() -> int:
    """Gives the most memory that this process has held. What `getrusage` says may be that of the one it came from."""
    said = Path("/proc/self/status").read_text().partition("VmHWM:")[2]
    return int(said.split()[0]) * 1024


def disk_bytes(directory: Path) -> dict[str, int]:
    """Gives the bytes on disk by what they are for: the database, its log of writes, indexes, the backup, measuring."""
    found = {"database": 0, "wal": 0, "index": 0, "backup": 0, "measuring": 0}
    for file in directory.rglob("*"):
        with suppress(OSError):  # it was removed meanwhile
            if file.is_file() and not file.is_symlink():
                found[_purpose(file.relative_to(directory))] += file.stat().st_blocks * 512
    return found


def _purpose(file: Path) -> str:
    if "pg_wal" in file.parts:
        return "wal"
    if file.parts[0] != "home":
        return "backup" if ".backup" in file.name else "measuring"
    return "index" if file.parts[1] == "index" else "database"


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        server = psutil.Process(pid)
        return [server, *server.children(recursive=True)]
    return []


if __name__ == "__main__":
    main()
