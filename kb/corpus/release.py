"""Releases: reads the stores of facts that are published in the paper's form.

A release is a folder of three files. ``entries.db`` is SQLite with ``entries(entry_id, data)``, whose data is JSON::

    {"id": "...", "fact_span": "Lima", "metadata": {"sample_id": "...", "fact_idx": 3}}

``faiss.index`` holds a key for each entry, and line n of ``faiss_id_to_entry_id.txt`` names the entry of key n (the
number itself may stand before it, with a tab). An entry says which fact of which sample it is, and not where in its
text: samples have no text in a release.

Everything is read in order and in pieces, so memory grows only by eight bytes a fact, by which `Release.examine` finds
repeated facts. It refuses a release as a whole, before anything of it is stored.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from colmlm.kb.corpus.format import is_blank, unstorable_characters
from colmlm.kb.errors import Invalid, count_of, refusals

ENTRIES, INDEX, IDS = "entries.db", "faiss.index", "faiss_id_to_entry_id.txt"
_AGAIN = "Copy the file again from where it was published, and compare their checksums."
_MAX_WORDS = 10_000
_ASKED_AT_ONCE = 1_000


class _About(msgspec.Struct):
    sample_id: str | int
    fact_idx: int


class _Entry(msgspec.Struct):
    id: str | int
    fact_span: str
    metadata: _About


_THESE = "SELECT entry_id, data FROM entries WHERE entry_id IN (SELECT value FROM json_each(?))"
_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class ReleasedFact:
    """A fact of a release: its value and its place, number `fact_idx` of a sample."""

    entry_id: str
    value: str
    sample_id: str
    fact_idx: int


@dataclass(frozen=True, slots=True)
class ExaminedRelease:
    """A release without faults: its number of facts, a digest of them in order, and one of their ids in order."""

    num_facts: int
    digest: str
    order: str


@dataclass(frozen=True, slots=True)
class Release:
    """A release in a folder. All of its methods raise `InvalidRelease`, with cause and remedy."""

    folder: Path

    @property
    def index(self) -> Path:
        return self.folder / INDEX

    def index_digest(self) -> str:
        """Compute the SHA-256 of the index file, which distinguishes one edition of the keys from another."""
        with self.index.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    def examine(self, on_entries: Callable[[int, int], None] | None = None) -> ExaminedRelease:
        """Read all entries and ids once. Raises `InvalidRelease` if any is missing, damaged or repeated."""
        for name in (ENTRIES, INDEX, IDS):
            if not (self.folder / name).is_file():
                raise refusals.invalid_release(
                    f"{self.folder} has no {name}", f"It takes {ENTRIES}, {INDEX} and {IDS}."
                )
        _require_whole(self.folder / ENTRIES)
        num_ids, order, named = self._ids_summed()
        with self._entries() as entries:
            num_entries = entries.execute("SELECT count(*) FROM entries").fetchone()[0]
            if num_entries != num_ids:
                lines = count_of(num_ids, "line")
                cause = f"{IDS} has {lines} for the {count_of(num_entries, 'entry')} of {ENTRIES}"
                raise refusals.invalid_release(cause, "The two files must come from the same release.")
            said, contents = self._entries_summed(entries, num_entries, on_entries)
        if said != named:
            raise refusals.invalid_release(self._bad_id(), "The two files must come from the same release.")
        return ExaminedRelease(num_ids, hashlib.sha256(f"{order} {contents:x}".encode()).hexdigest(), order)

    def pieces(self, size: int, start: int = 0) -> Iterator[list[ReleasedFact]]:
        """Yield the facts in the order of their keys, in lists of at most `size`, from number `start` on."""
        with self._entries() as entries:
            ids = islice(self._ids(), start, None)
            while some := list(islice(ids, size)):
                yield list(self._read(entries, some))

    def _ids(self) -> Iterator[str]:
        with (self.folder / IDS).open("rb") as lines:
            for number, line in enumerate(lines):
                try:
                    yield _read_entry_id(line, number)
                except ValueError as error:
                    raise refusals.invalid_release(f"line {number + 1} of {IDS} {error}", _AGAIN) from error

    def _ids_summed(self) -> tuple[int, str, int]:
        """Give the number of ids, a digest of their order, and a sum of their digests, which has no order."""
        order, number, total = hashlib.sha256(), 0, 0
        for entry_id in self._ids():
            number += 1
            order.update(b"%s\n" % entry_id.encode())
            total += _digest_number(entry_id)
        return number, order.hexdigest(), total % _MODULUS

    @contextmanager
    def _entries(self) -> Iterator[sqlite3.Connection]:
        uri = f"{(self.folder / ENTRIES).absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as entries:
                _require_table(entries)
                yield entries
        except sqlite3.Error as error:
            raise refusals.invalid_release(f"{ENTRIES} cannot be read: {error}", _AGAIN) from error

    def _entries_summed(
        self, entries: sqlite3.Connection, number: int, on_entries: Callable[[int, int], None] | None
    ) -> tuple[int, int]:
        """Parse every entry, refuse repeated facts, and give two sums of digests: of all ids, and of all contents."""
        total, contents, places = 0, 0, array("Q")
        rows = entries.execute("SELECT entry_id, data FROM entries")
        while piece := list(islice(rows, 20_000)):
            for entry_id, data in piece:
                fact = _parse_entry(str(entry_id), data)
                total += _digest_number(fact.entry_id)
                contents += _digest_number(f"{fact.fact_idx} {fact.sample_id}\0{fact.value}\0{fact.entry_id}")
                places.append(_digest_number(f"{fact.fact_idx} {fact.sample_id}") >> 64)
            if on_entries is not None:
                on_entries(len(places), number)
        ordered = np.sort(np.frombuffer(places, np.uint64)) if places else np.empty(0, np.uint64)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(again) and (twice := self._describe_repeated_fact(entries, set(again.tolist()))) is not None:
            raise refusals.invalid_release(twice, _REMEDY_TWICE)
        return total % _MODULUS, contents % _MODULUS

    @staticmethod
    def _describe_repeated_fact(entries: sqlite3.Connection, places: set[int]) -> str | None:
        """Describe two entries that are the same fact of the same sample; None if only their digests are alike."""
        first: dict[tuple[str, int], str] = {}
        for entry_id, data in entries.execute("SELECT entry_id, data FROM entries"):
            fact = _parse_entry(str(entry_id), data)
            if _digest_number(f"{fact.fact_idx} {fact.sample_id}") >> 64 in places:
                other = first.setdefault((fact.sample_id, fact.fact_idx), fact.entry_id)
                if other != fact.entry_id:
                    both = f"entries {other} and {fact.entry_id} of {ENTRIES}"
                    return f"{both} are both fact {fact.fact_idx} of sample {fact.sample_id!r}"
        return None

    def _bad_id(self) -> str:
        """Describe an id that is listed twice, or that no entry has; the ids are kept on the disk meanwhile."""
        with closing(sqlite3.connect("")) as kept, self._entries() as entries:
            kept.execute("CREATE TABLE named (id TEXT PRIMARY KEY) WITHOUT ROWID")
            for number, entry_id in enumerate(self._ids(), 1):
                if not kept.execute("INSERT OR IGNORE INTO named VALUES (?)", (entry_id,)).rowcount:
                    return f"line {number} of {IDS} names entry {entry_id}, as a line before it does"
                if (
                    entries.execute("SELECT 1 FROM entries WHERE entry_id = ?", (entry_id,)).fetchone()
                    is None
                ):
                    return f"line {number} of {IDS} names entry {entry_id}, which {ENTRIES} does not have"
        return f"{IDS} does not name the entries of {ENTRIES} as these spell their ids"

    @staticmethod
    def _read(entries: sqlite3.Connection, ids: Sequence[str]) -> Iterator[ReleasedFact]:
        for start in range(0, len(ids), _ASKED_AT_ONCE):
            some = ids[start : start + _ASKED_AT_ONCE]
            rows = entries.execute(_THESE, (json.dumps(some),))
            found = {str(entry_id): data for entry_id, data in rows}
            for entry_id in some:
                if (data := found.get(entry_id)) is None:
                    raise refusals.invalid_release(
                        f"{ENTRIES} has no entry {entry_id}, which {IDS} names", _AGAIN
                    )
                yield _parse_entry(entry_id, data)


_MODULUS = 1 << 128
_REMEDY_TWICE = "A fact has one key. Ask the publisher of the release which key is right."


def _digest_number(words: str) -> int:
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=16).digest())


def _read_entry_id(line: bytes, number: int) -> str:
    """Give the entry id in line `number` of the file of ids. Raises `ValueError` for a faulty line."""
    said = line.decode().rstrip("\r\n")
    before, tab, entry_id = said.rpartition("\t")
    if tab and before != str(number):
        raise ValueError(f"is for key {before}, where that of key {number} belongs")
    if not entry_id.strip():
        raise ValueError("is empty")
    return entry_id


def _require_whole(file: Path) -> None:
    """Raise `InvalidRelease` if a SQLite file is cut off or has changes in a journal; reading would notice late."""
    with file.open("rb") as opened:
        header = opened.read(100)
    if not header.startswith(b"SQLite format 3\x00"):
        raise refusals.invalid_release(f"{file.name} is not an SQLite database", _AGAIN)
    journal = file.with_name(f"{file.name}-wal")
    if journal.is_file() and journal.stat().st_size:
        remedy = f"Close whatever writes to it, then: sqlite3 {file.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        raise refusals.invalid_release(f"a part of {file.name} is still in {journal.name}", remedy)
    page = int.from_bytes(header[16:18]) or 1
    expected = int.from_bytes(header[28:32]) * (65_536 if page == 1 else page)
    if file.stat().st_size < expected:
        cause = f"{file.name} has {file.stat().st_size:,} of the {expected:,} bytes that its header tells of"
        raise refusals.invalid_release(cause, _AGAIN)


def _require_table(entries: sqlite3.Connection) -> None:
    columns = {name: is_key for _, name, _, _, _, is_key in entries.execute("PRAGMA table_info(entries)")}
    if not {"entry_id", "data"} <= set(columns):
        raise refusals.invalid_release(
            f"{ENTRIES} has no table entries(entry_id, data)", f"It takes {ENTRIES} as published."
        )
    if columns["entry_id"] != 1 and not _is_indexed(entries):
        remedy = f"Add one: sqlite3 {ENTRIES} 'CREATE UNIQUE INDEX by_id ON entries (entry_id)'"
        raise refusals.invalid_release(
            f"{ENTRIES} has no index of its entry ids, so every lookup would read the whole table", remedy
        )


def _is_indexed(entries: sqlite3.Connection) -> bool:
    names = [row[1] for row in entries.execute("PRAGMA index_list(entries)")]
    first = [
        entries.execute("SELECT name FROM pragma_index_info(?) WHERE seqno = 0", (n,)).fetchone()
        for n in names
    ]
    return ("entry_id",) in first


def _parse_entry(entry_id: str, data: str | bytes) -> ReleasedFact:
    """Parse an entry as a fact. Raises `InvalidRelease`, which names the entry, if it is faulty."""
    try:
        entry = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise _bad_entry(entry_id, f"cannot be read: {error}") from error
    sample_id, fact_idx, value = str(entry.metadata.sample_id), entry.metadata.fact_idx, entry.fact_span
    if str(entry.id) != entry_id:
        raise _bad_entry(entry_id, f"says that its id is {str(entry.id)!r}")
    if not 0 <= fact_idx < 2**31 or not sample_id.strip() or len(sample_id) > 1000:
        raise _bad_entry(entry_id, f"is fact {fact_idx} of sample {sample_id[:100]!r}, which cannot be")
    if is_blank(value) or len(value) > _MAX_WORDS:
        raise _bad_entry(
            entry_id, f"has a fact_span of {count_of(len(value), 'character')}, which is blank or too long"
        )
    if (fault := unstorable_characters(value) or unstorable_characters(sample_id)) is not None:
        raise _bad_entry(entry_id, f"has {fault[1]}")
    return ReleasedFact(entry_id, value, sample_id, fact_idx)


def _bad_entry(entry_id: str, cause: str) -> Invalid:
    return refusals.invalid_release(
        f"entry {entry_id} of {ENTRIES} {cause}", "Copy the file again from its publisher."
    )
