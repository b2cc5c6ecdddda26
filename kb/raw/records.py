"""JSON Lines of raw documents, plain or gzipped: ``{"id", "title", "text"}``, with ``url`` or ``uri`` at will."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, cast

from kb.corpus import Parsed, Refusal, parse_json, parse_record
from kb.raw.text import MOST_BYTES

_KEPT = ("title", "licence", "revision", "text")


def read_records(path: Path, on_bytes: Callable[[int], None]) -> Iterator[Parsed]:
    """Every line of the file. `on_bytes` hears how far into the file, as it lies on disk, the reading has come."""
    zipped = path.suffix.lower() == ".gz"
    with path.open("rb") as file, gzip.open(file) if zipped else nullcontext(file) as opened:
        lines = cast("IO[bytes]", opened)
        number = 0
        try:
            while line := lines.readline(MOST_BYTES + 1):
                number += 1
                where = f"{path.name}:{number}"
                if len(line) > MOST_BYTES:
                    yield _refused(where, f"a line of more than {MOST_BYTES} bytes")
                    _skip_line(lines, line)
                elif line.strip():
                    yield _document(line, where, path)
                on_bytes(file.tell())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield _refused(path.name, f"damaged gzip data after line {number}: {error}")


def _skip_line(lines: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = lines.readline(MOST_BYTES)


def _document(line: bytes, where: str, path: Path) -> Parsed:
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused(where, "not a JSON object")
    external_id = record.get("id")
    if record.get("facts"):
        return _refused(
            str(external_id), "annotated already; ingest the file as it is, with --format annotated"
        )
    if isinstance(external_id, int) and not isinstance(external_id, bool):
        external_id = str(external_id)
    plain: dict[str, Any] = {name: record.get(name) for name in _KEPT}
    uri = record.get("uri") or record.get("url") or path.absolute().as_uri()
    if isinstance(plain["text"], str):
        plain["text"] = plain["text"].replace("\r\n", "\n").replace("\r", "\n")
    return parse_record({**plain, "id": external_id, "uri": uri, "facts": []}, where)


def _refused(document: str, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, 0, reason),))
