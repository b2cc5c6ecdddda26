"""Files on their way to another machine and back: archives cut into parts that are small enough, with digests.

There, a command takes one part along with it; all parts together make the store, in which every step works.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

from colmlm.model.lm.config import damaged_file, file_digest

MANIFEST = "parcels.json"
PART_BYTES = 54 * 2**20  # of 64 MiB that travel with a command; the rest is the program itself
FILE_BYTES, MOST_FILES, BACK_BYTES = 16 * 2**20, 8, 64 * 2**20  # of what comes back from a command


class ParcelError(ValueError):
    """Parts are missing or damaged; the message says which."""


def pack(files: Mapping[str, Path], target: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Writes files and folders, by their names in the store, as parts with a manifest; gives the parts."""
    target.mkdir(parents=True, exist_ok=True)
    whole = target / "store.zip"
    _archive(files, whole)
    parts = _cut(whole, part_bytes)
    manifest = {part.name: file_digest(part) for part in parts}
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return parts


def receive(part: Path, store: Path) -> list[str]:
    """Keeps a part in the store, and unpacks them all once none is missing; gives the names of those still missing.

    The manifest travels with every part, in the same folder. Raises `ParcelError` for a part that is not whole.
    """
    parts = store / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, str] = json.loads((part.parent / MANIFEST).read_text())
    if damaged_file(part.parent, {part.name: manifest[part.name]}):
        raise ParcelError(f"{part} is not the part that was written: damaged on its way; send it again")
    (parts / part.name).write_bytes(part.read_bytes())
    missing = [name for name, digest in manifest.items() if damaged_file(parts, {name: digest})]
    if not missing:
        _unpack([parts / name for name in sorted(manifest)], store)
    return missing


def bring_back(files: Mapping[str, Path], back: Path, file_bytes: int = FILE_BYTES) -> list[str]:
    """Writes each file or folder as one archive into `back`, in parts where it is larger than a file may be.

    Gives the names of what was left out, since no more files or bytes come back: the last of `files` first.
    """
    back.mkdir(parents=True, exist_ok=True)
    left_out = []
    for name, path in files.items():
        whole = back / f"{name}.zip"
        _archive({name: path}, whole)
        there = [one for one in back.iterdir() if one != whole]
        count = len(there) + math.ceil(whole.stat().st_size / file_bytes)
        size = sum(one.stat().st_size for one in there) + whole.stat().st_size
        if count > MOST_FILES or size > BACK_BYTES:
            whole.unlink()
            left_out.append(name)
        elif whole.stat().st_size > file_bytes:
            _cut(whole, file_bytes)
    return left_out


def _archive(files: Mapping[str, Path], whole: Path) -> None:
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        for name, path in files.items():
            if path.is_file():
                archive.write(path, name)
            for file in sorted(path.rglob("*")) if path.is_dir() else ():
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, f"{name}/{file.relative_to(path)}")


def _cut(whole: Path, part_bytes: int) -> list[Path]:
    """Cuts a file into parts named ``NAME.1``, ``NAME.2`` ..., which `cat` joins, and removes it."""
    parts: list[Path] = []
    with whole.open("rb") as source:
        while piece := source.read(part_bytes):
            parts.append(whole.with_name(f"{whole.name}.{len(parts) + 1}"))
            parts[-1].write_bytes(piece)
    whole.unlink()
    return parts


def _unpack(parts: list[Path], store: Path) -> None:
    whole = store / "parts" / "whole"
    with whole.open("wb") as joined:
        joined.writelines(part.read_bytes() for part in parts)
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(store)
    whole.unlink()
