"""Residue: what files still hold of an erased text, found by reading the files.

Every file of the database server (where its data directory is on this host), of the index directory, of the home and
of the shared snapshots is searched for byte strings, the traces. The report names what a search cannot see: text that
is compressed or split, and everything that is not in such a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import is_zipfile

import numpy as np
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, SharedSnapshotsUnavailable
from colmlm.kb.lookup import shared
from colmlm.kb.lookup.snapshot_files import Readable
from colmlm.kb.lookup.snapshots import named_collections
from colmlm.kb.store.settings import Settings

LEAST = 8  # bytes of a trace: shorter ones would be found anywhere
BLOCK = 1 << 20
AREAS = ("heap", "keys", "wal", "snapshots", "log", "other")
MOST_FILES = 50

OnFile = Callable[[int, int], None]  # called with the number of files read, and of all files

_HASH = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(44)


@dataclass(frozen=True, slots=True)
class FileResidue:
    """A file that holds traces, its area (one of `AREAS`), and how many it holds (`num_probes`)."""

    area: str
    path: str
    num_probes: int


@dataclass(frozen=True, slots=True)
class ResidueReport:
    """The result of a scan for `num_probes` traces. `found` has the number of traces by area.

    `unseen` says what could not be read, and why. `clean` is true only where nothing was found and every file of the
    server was read.
    """

    clean: bool
    num_probes: int
    num_found: int
    found: dict[str, int]
    files: tuple[FileResidue, ...]
    unseen: tuple[str, ...]
    num_bytes: int


class _Source(NamedTuple):
    """A file to search: its area, where it is, how it is opened, and how its size is found."""

    area: str
    where: str
    opened: Callable[[], AbstractContextManager[Readable]]
    size: Callable[[], int]


class Matcher:
    """Finds many byte strings at once: looks up the hash of each eight bytes in a table, then compares exactly."""

    def __init__(self, traces: Sequence[bytes]) -> None:
        if short := [trace.decode(errors="replace") for trace in traces if len(trace) < LEAST]:
            named = ", ".join(map(repr, short[:10]))
            cause = f"files hold less than {LEAST} bytes by chance: {named}. Give a longer text around that"
            raise InvalidValue("text to search for", cause)
        self.longest = max(map(len, traces), default=LEAST)
        self._by_start: dict[bytes, list[tuple[int, bytes]]] = {}
        for n, trace in enumerate(traces):
            self._by_start.setdefault(trace[:LEAST], []).append((n, trace))
        self._hashes = np.zeros(1 << 20, dtype=bool)
        for start in self._by_start:
            self._hashes[_hash(np.frombuffer(start, "<u8"))] = True

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield (number of the trace, offset) for every place in the block where a trace occurs."""
        if block.count(0) == len(block):
            return
        for shift in range(min(LEAST, max(0, len(block) - LEAST + 1))):
            words = np.frombuffer(block, "<u8", count=(len(block) - shift) // LEAST, offset=shift)
            for word in np.flatnonzero(self._hashes[_hash(words)]).tolist():
                at = word * LEAST + shift
                for n, trace in self._by_start.get(block[at : at + LEAST], ()):
                    if block.startswith(trace, at):
                        yield n, at

    def find_in_file(self, path: Path) -> tuple[set[int], int]:
        """Give the numbers of the traces that a file holds, and its size.

        Blocks overlap, so that a trace across two of them is found.
        """
        with path.open("rb") as file:
            return self.find_in(file)

    def find_in(self, file: Readable) -> tuple[set[int], int]:
        """Give the numbers of the traces in the bytes of `file`, and how many bytes it has."""
        found: set[int] = set()
        size, tail = 0, b""
        while chunk := file.read(BLOCK):
            size += len(chunk)
            block = tail + chunk
            found.update(n for n, _ in self.find(block))
            tail = block[-(self.longest - 1) :]
        return found, size


def _hash(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return (words * _HASH) >> _SHIFT


def scan_residue(
    traces: Sequence[bytes],
    *,
    engine: Engine,
    settings: Settings,
    keys: Iterable[int] = (),
    on_file: OnFile | None = None,
) -> ResidueReport:
    """Search all files for the traces; `keys` are the numbers of the traces that are keys.

    Asks the server first to write what it has only in memory, where this role may do so. Changes nothing else.
    """
    matcher, of_keys = Matcher(traces), frozenset(keys)
    sources, unseen = _sources(engine, settings)
    by_area: dict[str, set[int]] = {area: set() for area in AREAS}
    listed: list[FileResidue] = []
    num_bytes = 0
    for done, source in enumerate(sources, 1):
        try:
            with source.opened() as stream:
                found, size = matcher.find_in(stream)
        except FileNotFoundError:  # a segment or a temporary file that was removed meanwhile
            continue
        except (OSError, SharedSnapshotsUnavailable) as error:
            unseen.append(f"{source.where}: {error.strerror}" if isinstance(error, OSError) else str(error))
            continue
        num_bytes += size
        areas = {n: "keys" if source.area == "heap" and n in of_keys else source.area for n in found}
        for n, area in areas.items():
            by_area[area].add(n)
        listed += [FileResidue(area, source.where, count) for area, count in Counter(areas.values()).items()]
        if on_file is not None:
            on_file(done, len(sources))
    everywhere = set().union(*by_area.values())
    return ResidueReport(
        clean=not (everywhere or unseen),
        num_probes=len(traces),
        num_found=len(everywhere),
        found={area: len(there) for area, there in by_area.items()},
        files=tuple(sorted(listed, key=lambda f: -f.num_probes)[:MOST_FILES]),
        unseen=tuple(unseen),
        num_bytes=num_bytes,
    )


def num_bytes_to_scan(*, engine: Engine, settings: Settings) -> int:
    """Count the bytes that `scan_residue` would read, so that a caller can refuse a scan that takes too long."""
    total = 0
    for source in _sources(engine, settings)[0]:
        with suppress(OSError, SharedSnapshotsUnavailable):  # the file was removed meanwhile
            total += source.size()
    return total


def _sources(engine: Engine, settings: Settings) -> tuple[list[_Source], list[str]]:
    """List the files of the server, of the home and shared ones to search, and what a search of them cannot see."""
    data, unseen = _data_directory(engine)
    sources = [
        _Source(area, str(path), partial(_open, path), partial(_size_of, path))
        for area, path in _files(data, settings)
    ]
    unseen += [
        f"{one.where}: a backup or another ZIP archive, compressed: not searched for text"
        for one in sources
        if one.area == "other" and is_zipfile(one.where)
    ]
    with Session(engine) as session:
        unseen += [
            f"{one.there.where}: Milvus's files are not searched"
            for one in named_collections(session, settings)
        ]
        if (folder := shared.folder_of(session, settings)) is None:
            unseen += filter(None, [shared.describe_unset_shared_place(session, settings)])
            return sources, unseen
        try:
            names = folder.names()
            unseen += shared.snapshot_doubts(session, folder).values()
            uploads = folder.unfinished_uploads()
        except SharedSnapshotsUnavailable as error:
            return sources, [*unseen, str(error)]
    unseen += [f"{folder.where}/{name}: parts of an upload" for name in uploads.names]
    unseen += filter(None, [uploads.unlisted])
    sources += [
        _Source(
            "snapshots", f"{folder.where}/{name}", partial(folder.reading, name), partial(folder.size, name)
        )
        for name in names
    ]
    return sources, unseen


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _size_of(path: Path) -> int:
    return path.stat().st_size


def _data_directory(engine: Engine) -> tuple[Path | None, list[str]]:
    """Give the server's data directory, if it is readable on this host, and what a scan of it cannot see."""
    unseen: list[str] = []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            connection.execute(text("CHECKPOINT"))
        except DBAPIError:
            unseen.append("pages that the server has not written yet: this role may not ask for a checkpoint")
        if connection.scalar(text("SHOW wal_compression")) != "off":
            unseen.append("full pages in the WAL: wal_compression is on")
        try:
            named = connection.scalar(text("SHOW data_directory"))
            identifier = connection.scalar(text("SELECT system_identifier FROM pg_control_system()"))
        except DBAPIError:
            return None, [*unseen, "the server's files: this role may not ask where they lie"]
    data = Path(str(named))
    try:
        with (data / "global" / "pg_control").open("rb") as control:
            here = int.from_bytes(control.read(8), "little") == identifier
    except OSError:
        here = False
    if not here:
        return None, [*unseen, "the server's files: they are not on this host, or not readable"]
    return data, unseen


def _files(data: Path | None, settings: Settings) -> Iterator[tuple[str, Path]]:
    """Give (area, path) of every file to read, each once."""
    seen: set[Path] = set()
    roots = [("home", settings.index_directory), ("home", settings.home)]
    if data is not None:
        roots.insert(0, ("server", data))
        roots += [("server", tablespace.resolve()) for tablespace in (data / "pg_tblspc").glob("*")]
    for kind, root in roots:
        for path in sorted(root.rglob("*")):
            if path in seen or path.is_symlink() or not path.is_file():
                continue
            seen.add(path)
            if kind == "server":
                yield (_area(path.relative_to(root)) if root == data else "heap"), path
            else:
                yield ("snapshots" if path.is_relative_to(settings.index_directory) else "other"), path


def _area(path: Path) -> str:
    """Give the area, one of `AREAS`, of a file by its path in the data directory."""
    if path.parts[0] in ("base", "global"):
        return "heap"
    if path.parts[0] == "pg_wal":
        return "wal"
    return "log" if path.parts[0] in ("log", "pg_log") or path.suffix == ".log" else "other"
