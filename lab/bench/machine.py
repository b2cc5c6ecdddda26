"""Describes the machine that figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import psutil
import typer
from sqlalchemy import text

from colmlm.cli.options import wants_json
from colmlm.cli.output import plain, print_json, print_table, progress, say

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase


PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers")


def machine() -> dict[str, Any]:
    """Give this machine's processor and number of cores, and the versions of Python and of the packages."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if _is_installed(name)},
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


# Measures durations: the seconds of one piece of work, and percentiles of many in milliseconds.


def seconds_of(work: Callable[[], object]) -> float:
    """Run `work` and give the seconds that it took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def milliseconds(seconds: Sequence[float], percentile: float) -> float:
    """Give a percentile of these durations in milliseconds, or nan where there are none."""
    return 1000 * float(np.percentile(seconds, percentile)) if len(seconds) else float("nan")


# Times several ways of doing one job in turns, so that other load on the machine affects all of them alike.


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The median, least and greatest seconds of one way over all rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Seconds:
        return cls(median=statistics.median(times), least=min(times), most=max(times))


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
    """Time each way in `rounds` rounds, after one that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with progress(f"Timing {' and '.join(ways)}") as advance:
        for number in range(rounds + 1):
            for done, (name, work) in enumerate(ways.items(), start=number * len(ways)):
                advance(done, len(ways) * (rounds + 1))
                seconds = seconds_of(work)
                if number:
                    taken[name].append(seconds)
    return {name: Seconds.of(times) for name, times in taken.items()}


# Folders and bases of a benchmark's own, which are removed when it is done, and their servers before them.

ACTOR, REASON = "bench", "benchmark"
WorkDirectory = Annotated[
    Path | None,
    typer.Option(
        "--directory", exists=True, file_okay=False, help="Where to work. Default: a temporary one."
    ),
]


@contextmanager
def own_folder(directory: Path | None = None) -> Iterator[Path]:
    """Give a new folder, for one home or several. Every server on a base in it is stopped before it is removed.

    A server that runs on writes while its files are removed, so that the removal fails and takes the figures with it.
    """
    from colmlm.kb.store.embedded_server import EmbeddedServer

    with tempfile.TemporaryDirectory(dir=directory, prefix="colmlm-bench-") as folder:
        Path(folder).chmod(0o755)  # the embedded server may run as another user
        try:
            yield Path(folder)
        finally:
            for running in Path(folder).rglob("postmaster.pid"):
                EmbeddedServer(running.parent).stop()


def kill_server(data: Path) -> list[psutil.Process]:
    """Kill the PostgreSQL server on this data directory by SIGKILL, then each of its children; give them all."""
    parent = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    parent.suspend()  # so that it starts no other child meanwhile
    family = [parent, *parent.children()]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return family


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def settle(kb: KnowledgeBase) -> None:
    """Run VACUUM ANALYZE and CHECKPOINT now, so that the server does not run them within a measurement."""
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
        connection.execute(text("CHECKPOINT"))


@contextmanager
def empty_base() -> Iterator[KnowledgeBase]:
    """Give an empty knowledge base."""
    from colmlm.kb.service import KnowledgeBase
    from colmlm.kb.store.settings import Settings

    with own_folder() as home, KnowledgeBase.open(Settings(home=home, actor=ACTOR)) as kb:
        yield kb


# Prints what a command of the laboratory found.


def print_report(report: object, only_json: str = "") -> None:
    """Print a report: a table for each list of alike records in it, and all else as one table of figures.

    What is named `only_json` anywhere in it is printed with --json alone.
    """
    if wants_json():
        print_json(report)
        return
    tables: dict[str, list[dict[str, Any]]] = {}
    print_table(("figure", "value"), list(_figures("", plain(report), tables)))
    for name, records in tables.items():
        if only_json and name.split()[-1] == only_json:
            continue
        say(f"\n{name}")
        print_table(
            [column.replace("_", " ") for column in records[0]],
            [[_cell(value) for value in record.values()] for record in records],
        )


def _figures(name: str, part: Any, tables: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yield the figures below a part of a report by their names, and put its lists of records into the tables."""
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _figures(f"{name} {str(key).replace('_', ' ')}".strip(), value, tables)
    elif isinstance(part, list) and part and all(isinstance(one, dict) for one in part):
        tables[name] = [dict(_figures("", one, tables)) for one in part]
        if any(one.keys() != tables[name][0].keys() for one in tables[name]):
            for number, record in enumerate(tables.pop(name), start=1):
                yield from _figures(f"{name} {number}", record, tables)
    else:
        yield name, _cell(part)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
