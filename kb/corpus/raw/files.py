"""Finds the files to read: those that are named, and those in directories that are named.

A directory is walked by handles. Every name below it is opened relative to the handle of its directory, and no link is
followed. A directory that is swapped for a link during the walk is refused, and so is a file before it is read. It
needs a system with `openat` (Linux, macOS), as the reading process needs `setrlimit`. The messages between that process
and its parent are JSON, each after its length.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from colmlm.kb.corpus.format import Parsed, Refusal, unstorable_characters
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.texts.characters import Breach

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
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is opened without waiting, and then refused
READABLE = f"{', '.join(KINDS)}; records, tables and wikis also with {' or '.join(_PACKED)}"


class FolderOrigin(NamedTuple):
    """The origin of a file found in a named directory: that directory, and the device and inode of the file."""

    folder: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file to read, of a kind of `KINDS`. Its document's id is its path below the directory that was named.

    A page that was fetched has its `uri` and `encoding`; the address of other files is their path. A file that was
    found in a directory has its `origin`, and no other file is read in its place.
    """

    path: Path
    external_id: str
    kind: str
    size: int
    uri: str | None = None
    encoding: str | None = None
    origin: FolderOrigin | None = None


@dataclass(slots=True)
class FoundFiles:
    """The files in reading order, the refusals, and the number of files of other kinds by suffix."""

    files: list[RawFile] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


def find_files(inputs: Sequence[Path]) -> FoundFiles:
    """Find the readable files among `inputs` and, sorted, in the directories among them and below.

    It skips hidden files and directories. In a directory it refuses links, since they may lead out of it or in a
    circle, and only counts files of other kinds; a file that is named itself is read, also through a link, or refused.
    """
    found = FoundFiles()
    for path in inputs:
        if path.is_dir():
            folder = path.absolute()
            for name, about in walk_folder(folder, found.refusals):
                _take_found(folder, name, about, found)
        else:
            _take_named(path, found)
    return found


def walk_folder(folder: Path, refusals: list[Refusal]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files and links below a directory by their path in it, each with its status, in order.

    A refusal of each directory or file that cannot be opened is added to `refusals`.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        names = waiting.pop()
        try:
            with _opened_folder(folder, names) as handle:
                entries = sorted(_entries(handle, names, refusals))
        except OSError as error:
            refusals.append(refuse_unreadable("/".join(names) or ".", error))
            continue
        waiting += [(*names, name) for name, about in reversed(entries) if stat.S_ISDIR(about.st_mode)]
        yield from (
            ("/".join((*names, name)), about) for name, about in entries if not stat.S_ISDIR(about.st_mode)
        )


@contextmanager
def opened_file(path: Path, origin: FolderOrigin | None) -> Iterator[Path]:
    """Give a path that opens the file within the block: its own path, if it was named and so has no origin.

    With an origin the path leads to a handle of the file that was found. On macOS a second opening goes on where the
    first stopped, and has to seek. Raises `OSError`, also where a link, a pipe or another file is there now, or a link
    to a directory on the way to it.
    """
    if origin is None:
        yield path
        return
    handle = _opened_file(path, origin)
    try:
        yield Path(f"/dev/fd/{handle}")
    finally:
        os.close(handle)


@contextmanager
def _opened_folder(folder: Path | str, names: Sequence[str]) -> Iterator[int]:
    """Open a directory below a folder name by name, and follow no link below the folder."""
    handle = os.open(folder, _OPEN_FOLDER)
    try:
        for name in names:
            below = _open_below(handle, name, _OPEN_FOLDER | os.O_NOFOLLOW)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _opened_file(path: Path, origin: FolderOrigin) -> int:
    *names, name = path.relative_to(origin.folder).parts
    with _opened_folder(origin.folder, names) as folder:
        handle = _open_below(folder, name, _OPEN_FILE)
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino) == origin[1:]:
        return handle
    os.close(handle)
    raise _swapped_file_error()


def _open_below(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _swapped_file_error() if error.errno in (errno.ELOOP, errno.ENOTDIR) else error from None


def _swapped_file_error() -> OSError:
    return OSError(errno.ESTALE, "something else is there now than when the directory was read")


def _entries(
    folder: int, names: Sequence[str], refusals: list[Refusal]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in an open directory that are not hidden, each with its status; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if not entry.name.startswith("."):
                    yield entry.name, entry.stat(follow_symlinks=False)
            except OSError as error:
                refusals.append(refuse_unreadable("/".join((*names, entry.name)), error))


def refuse_unreadable(name: str, error: OSError) -> Refusal:
    """Refuse a file or directory that cannot be opened."""
    return Refusal(printable(name), 0, f"cannot be read: {error.strerror or error}")


def kind_of(name: str) -> str | None:
    """Give the kind of a file by the end of its name; None if no reader takes such files."""
    small = name.lower()
    plain = next((small.removesuffix(suffix) for suffix in _PACKED if small.endswith(suffix)), small)
    if _EXTRACT.fullmatch(plain):
        return "records"
    kind = next((kind for suffix, kind in KINDS.items() if plain.endswith(suffix)), None)
    return kind if plain == small or kind in _PACKABLE else None


def _take_named(path: Path, found: FoundFiles) -> None:
    kind = kind_of(path.name)
    try:
        about = path.stat()
    except OSError as error:
        found.refusals.append(refuse_unreadable(path.name, error))
        return
    _take(RawFile(path, path.name, kind or "", about.st_size), about, found)


def _take_found(folder: Path, name: str, about: os.stat_result, found: FoundFiles) -> None:
    path = folder / name
    origin = FolderOrigin(str(folder), about.st_dev, about.st_ino)
    kind = kind_of(path.name)
    if path.suffix.lower() == ".xml" and not _is_dump(path, origin):
        kind = None
    if kind is None:
        found.passed_over[path.suffix.lower() or "no suffix"] += 1
    else:
        _take(RawFile(path, name, kind, about.st_size, origin=origin), about, found)


def _take(file: RawFile, about: os.stat_result, found: FoundFiles) -> None:
    if (reason := _fault(file, about)) is None:
        found.files.append(file)
    else:
        found.refusals.append(Refusal(printable(file.external_id), 0, reason))


def _is_dump(path: Path, origin: FolderOrigin) -> bool:
    """Say whether an XML file of a folder is the dump of a wiki, since most XML files are not."""
    try:
        with opened_file(path, origin) as place, place.open("rb") as file:
            return _DUMP in file.read(_HEAD_BYTES)
    except OSError:
        return True  # whatever it is, `_fault` says so


def _fault(file: RawFile, about: os.stat_result) -> str | None:
    if stat.S_ISLNK(about.st_mode):
        return "a symbolic link, which is not followed inside a directory; name what it leads to"
    if not stat.S_ISREG(about.st_mode):
        return "not a file"
    if not file.kind:
        return f"no reader for such a file; readable are {READABLE}"
    if unstorable_characters(file.external_id) is not None:
        return "its name is not UTF-8, so it cannot be an id; rename it"
    return path_fault(file.path)


def path_fault(path: Path) -> str | None:
    """Say why a path cannot be handed to the reading process; None if it can."""
    whole = str(path.absolute())
    return (
        None
        if unstorable_characters(whole) is None
        else f"its path {printable(whole)} is not UTF-8; rename it"
    )


def printable(path: str) -> str:
    """Give the path in a form that can be printed and stored, since a name need not be UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


LENGTH = struct.Struct(">Q")
WIDEST = 8  # bytes of a message for each character of a document: its escapes, and its facts


class ReadRequest(msgspec.Struct):
    """A request to the reading process: a file, its kind, and the line to start after."""

    kind: str
    path: str
    external_id: str = ""
    encoding: str | None = None
    fields: FieldNames = FieldNames()
    uri: str | None = None
    origin: FolderOrigin | None = None
    after: int = 0


class ReaderReport(msgspec.Struct, omit_defaults=True):
    """A report of the reading process: a document, a refusal, or progress up to `line`.

    `reached` is that line's end in bytes; `end` marks the file's end. After a `breach` (limit, failure) none follows.
    """

    line: int = 0
    reached: int = 0
    parsed: Parsed | None = None
    breach: Breach | None = None
    how: str = ""
    end: bool = False


def send_message(stream: IO[bytes], message: bytes) -> None:
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive_message(stream: IO[bytes]) -> bytes | None:
    """Read the next message from the stream; None if the other end has closed it."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None
