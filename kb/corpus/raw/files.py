"""Finds the files to read: those that are named, and those in directories that are named."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colmlm.kb.corpus.format import Refusal, unstorable
from colmlm.kb.corpus.raw.opening import Identity, held, identity_of

KINDS = {
    ".txt": "text", ".text": "text",
    ".md": "markdown", ".markdown": "markdown",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".pdf": "pdf", ".docx": "word", ".epub": "epub",
    ".jsonl": "records", ".ndjson": "records",
    ".csv": "table", ".tsv": "table", ".parquet": "columns", ".xml": "wiki",
}  # fmt: skip
_PACKED = (".gz", ".bz2")
_PACKABLE = ("records", "table", "wiki")  # kinds that are read packed, too
_EXTRACT = re.compile(r"wiki_[0-9]+")  # what WikiExtractor calls its files of JSON Lines
_DUMP, _HEAD_BYTES = b"<mediawiki", 4096
READABLE = f"{', '.join(KINDS)}; records, tables and wikis also with {' or '.join(_PACKED)}"


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file to read, of a kind of `KINDS`. Its document's id is its path below the directory that was named.

    `uri` and `encoding` are known of a page that was fetched; of other files the address is where they lie.
    `identity` is known of a file that was found in a directory, and no other file is read in its place.
    """

    path: Path
    external_id: str
    kind: str
    size: int
    uri: str | None = None
    encoding: str | None = None
    identity: Identity | None = None


@dataclass(slots=True)
class FoundFiles:
    """The files in reading order, the refusals, and the number of files of other kinds by suffix."""

    files: list[RawFile] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


def find_files(inputs: Sequence[Path]) -> FoundFiles:
    """Finds the readable files among `inputs` and, sorted, in the directories among them and below.

    It skips hidden files and directories. In a directory it refuses links, since they may lead out of it or in a
    circle, and only counts files of other kinds; a file that is named itself is read, also through a link, or refused.
    """
    found = FoundFiles()
    for path in inputs:
        if path.is_dir():
            for file, external_id in _below(path, path, found):
                _take(file, external_id, found, named=False)
        else:
            _take(path, path.name, found, named=True)
    return found


def kind_of(name: str) -> str | None:
    """Gives the kind of a file by its name."""
    small = name.lower()
    plain = next((small.removesuffix(suffix) for suffix in _PACKED if small.endswith(suffix)), small)
    if _EXTRACT.fullmatch(plain):
        return "records"
    kind = next((kind for suffix, kind in KINDS.items() if plain.endswith(suffix)), None)
    return kind if plain == small or kind in _PACKABLE else None


def _below(directory: Path, top: Path, found: FoundFiles) -> Iterator[tuple[Path, str]]:
    """Yields files and links below a directory, in the order of their paths."""
    waiting = [directory]
    while waiting:
        at = waiting.pop()
        try:
            entries = sorted(os.scandir(at), key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            found.refusals.append(Refusal(_shown(at.relative_to(top).as_posix()), 0, _cause(error)))
            continue
        files = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                files.append((path, path.relative_to(top).as_posix()))
        yield from reversed(files)


def _take(path: Path, external_id: str, found: FoundFiles, *, named: bool) -> None:
    shown = _shown(external_id)
    kind = kind_of(path.name)
    if path.suffix.lower() == ".xml" and not named and not _is_dump(path):
        kind = None
    if kind is None and not named:
        found.passed_over[path.suffix.lower() or "no suffix"] += 1
        return
    try:
        about = path.stat() if named else path.lstat()
    except OSError as error:
        found.refusals.append(Refusal(shown, 0, _cause(error)))
        return
    if (reason := _fault(about, kind, external_id)) is not None:
        found.refusals.append(Refusal(shown, 0, reason))
        return
    assert kind is not None
    identity = None if named else identity_of(about)
    found.files.append(RawFile(path, external_id, kind, about.st_size, identity=identity))


def _is_dump(path: Path) -> bool:
    """Says whether an XML file of a folder is a wiki's, since most are something else."""
    try:
        with held(path, identity_of(path.lstat())) as place, place.open("rb") as file:
            return _DUMP in file.read(_HEAD_BYTES)
    except OSError:
        return True  # whatever it is, `_fault` says so


def _fault(about: os.stat_result, kind: str | None, external_id: str) -> str | None:
    if stat.S_ISLNK(about.st_mode):
        return "a symbolic link, which is not followed inside a directory; name what it leads to"
    if not stat.S_ISREG(about.st_mode):
        return "not a file"
    if kind is None:
        return f"no reader for such a file; readable are {READABLE}"
    if unstorable(external_id) is not None:
        return "its name is not UTF-8, so it cannot be an id; rename it"
    return None


def _shown(path: str) -> str:
    """Gives the path in a form that can be printed and stored, since a name need not be UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _cause(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
