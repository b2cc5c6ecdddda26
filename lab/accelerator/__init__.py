"""Minutes on a rented accelerator: parcels that a bare machine unpacks, steps that it carries out, results back.

Here are the parcels. Each is a ZIP file with a program in it, which is this module: ``python3 first-1.zip /tmp/store``
checks it and keeps its part in the store. The last one unpacks them all. Only the standard library is needed, so the
package itself travels in the parcels, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

PARCEL_BYTES = 59 * 2**20
FILE_BYTES, MOST_FILES, BACK_BYTES = 16 * 2**20, 8, 64 * 2**20  # of what comes back from one command
MANIFEST, CONTENTS, PART_PREFIX = "manifest.json", "contents.json", "part"
_CHUNK = 2**20


def pack(
    files: Mapping[str, Path], target: Path, name: str, *, parcel_bytes: int = PARCEL_BYTES
) -> list[Path]:
    """Write files and folders, by their names in the store, as parcels of at most `parcel_bytes` with a manifest.

    Gives the parcels. Older ones of this name in `target` are removed first.
    """
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob(f"{name}-*.zip"):
        old.unlink()
    whole = target / f".{name}.whole"
    contents: dict[str, Any] = {"name": name, "files": _archive(_list_files(files), whole, level=6)}
    contents["whole"] = file_digest(whole)
    program = Path(__file__).read_text(encoding="utf-8")
    room = parcel_bytes - 2 * len(json.dumps(contents)) - len(program) - 4096  # of a parcel, for its part
    if room < 1024:
        raise ValueError(
            f"parcels of {parcel_bytes} bytes hold the list of {len(files)} files and nothing else"
        )
    parts = list(_cut(whole, room))
    contents["parts"] = [file_digest(part) for part in parts]
    parcels = []
    for number, part in enumerate(parts, start=1):
        parcels.append(target / f"{name}-{number}.zip")
        with zipfile.ZipFile(parcels[-1], "w") as parcel:
            parcel.writestr("__main__.py", program)
            parcel.writestr(CONTENTS, json.dumps(contents), zipfile.ZIP_DEFLATED)
            parcel.write(part, f"{PART_PREFIX}-{number}")
        part.unlink()
    whole.unlink()
    manifest = {
        parcel.name: {"bytes": parcel.stat().st_size, "sha256": file_digest(parcel)} for parcel in parcels
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return parcels


def receive(parcel: Path, store: Path) -> list[int]:
    """Keep a parcel's part in the store; give the numbers of the parcels that are still missing.

    When none is, everything is unpacked and each file compared with its digest. Raises `ValueError` for a parcel that
    is not as it was written; then nothing of it is kept.
    """
    kept = store / "parcels"
    try:
        with zipfile.ZipFile(parcel) as archive:
            contents = json.loads(archive.read(CONTENTS))
            (inside,) = (one for one in archive.namelist() if one.startswith(f"{PART_PREFIX}-"))
            if _is_unpacked(store, contents):
                return []
            kept.mkdir(parents=True, exist_ok=True)
            with archive.open(inside) as source, (kept / f".{inside}").open("wb") as copy:
                shutil.copyfileobj(source, copy, _CHUNK)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(
            f"{parcel} is damaged or no parcel ({error}). Nothing of it was kept; send it again"
        ) from error
    number = int(inside.removeprefix(f"{PART_PREFIX}-"))
    if file_digest(kept / f".{inside}") != contents["parts"][number - 1]:
        (kept / f".{inside}").unlink()
        raise ValueError(f"{parcel} was damaged on its way. Nothing of it was kept; send it again")
    (kept / f".{inside}").replace(kept / inside)
    numbered = [
        (n, kept / f"{PART_PREFIX}-{n}", digest) for n, digest in enumerate(contents["parts"], start=1)
    ]
    missing = [n for n, part, digest in numbered if not part.is_file() or file_digest(part) != digest]
    if not missing:
        _unpack([part for _, part, _ in numbered], store, contents)
    return missing


def write_result(
    paths: Mapping[str, Path], folder: Path, name: str, *, file_bytes: int = FILE_BYTES
) -> list[Path]:
    """Write files and folders as an archive NAME.zip in `folder`, in pieces NAME.zip.001, ... where it is too large.

    `cat NAME.zip.*` joins them. What only resumes a run (`state.pt`, hidden files) stays behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{name}.zip"
    _archive([(inside, file) for inside, file in _list_files(paths) if not _resumes(file)], whole, level=1)
    if whole.stat().st_size <= file_bytes:
        return [whole]
    pieces = list(_cut(whole, file_bytes))
    whole.unlink()
    return pieces


def file_digest(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _resumes(file: Path) -> bool:
    return file.name == "state.pt" or file.name.startswith(".")


def _list_files(files: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """List the files, those of folders one by one, without compiled code."""
    found = []
    for name, path in files.items():
        inner = sorted(path.rglob("*")) if path.is_dir() else []
        found += [(f"{name}/{file.relative_to(path).as_posix()}", file) for file in inner if file.is_file()]
        if path.is_file():
            found.append((name, path))
    return [(name, file) for name, file in found if "__pycache__" not in file.parts]


def _archive(files: Sequence[tuple[str, Path]], whole: Path, *, level: int) -> dict[str, str]:
    """Write the files into one archive; give their digests by name."""
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, file in files:
            archive.write(file, name)
    return {name: file_digest(file) for name, file in files}


def extract_with_modes(archive: zipfile.ZipFile, target: Path) -> None:
    """Unpack all files, and let those be executed that could be where they were packed, such as a database's."""
    archive.extractall(target)
    for file in archive.infolist():
        if file.external_attr >> 16 & 0o111:
            (target / file.filename).chmod(0o755)


def _cut(whole: Path, most: int) -> Iterator[Path]:
    """Cut a file into pieces named NAME.001, NAME.002, ..."""
    with whole.open("rb") as source:
        number = 0
        while data := source.read(min(most, _CHUNK)):
            number += 1
            piece = whole.with_name(f"{whole.name}.{number:03}")
            with piece.open("wb") as copy:
                copy.write(data)
                while copy.tell() < most and (data := source.read(min(most - copy.tell(), _CHUNK))):
                    copy.write(data)
            yield piece


def _unpack(parts: Sequence[Path], store: Path, contents: Mapping[str, Any]) -> None:
    """Join the parts, unpack them and compare every file with its digest."""
    whole = store / "parcels" / ".whole"
    with whole.open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, joined, _CHUNK)
    if file_digest(whole) != contents["whole"]:
        raise ValueError(
            "the parcels do not belong together. Nothing was unpacked; send all of one preparation"
        )
    with zipfile.ZipFile(whole) as archive:
        for name in archive.namelist():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"the parcels hold {name!r}, outside of the store. Nothing was unpacked")
        extract_with_modes(archive, store)
    damaged = [name for name, digest in contents["files"].items() if file_digest(store / name) != digest]
    if damaged:
        raise ValueError(f"{damaged[0]} is not what was packed: is the disk full? Send the parcels again")
    (store / CONTENTS).write_text(json.dumps(contents))
    shutil.rmtree(store / "parcels")


def _is_unpacked(store: Path, contents: Mapping[str, Any]) -> bool:
    known = store / CONTENTS
    return known.is_file() and json.loads(known.read_text())["whole"] == contents["whole"]


def main() -> None:
    """Receive the parcel that this program stands in."""
    parser = argparse.ArgumentParser(
        description="Check this parcel and keep it; the last one unpacks them all."
    )
    parser.add_argument("store", type=Path, help="the folder to unpack into, outside of any checkout")
    store = parser.parse_args().store
    try:
        missing = receive(Path(sys.argv[0]), store)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    sys.stdout.write(json.dumps({"store": str(store), "missing": missing}) + "\n")


if __name__ == "__main__":
    main()
