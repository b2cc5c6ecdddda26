"""Generated documents that try to exhaust their reader's memory, time or stack, and folders that are swapped."""

from __future__ import annotations

import gzip
import io
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

MEGA = 1 << 20
_PAGE = b"BT /F1 12 Tf 72 720 Td (Lima) Tj ET"


class Hostile(NamedTuple):
    """A file that an attacker may send. `codes` are the refusals it may get; empty if it may also be accepted."""

    name: str
    make: Callable[[], bytes]
    codes: tuple[str, ...] = ()


def inflating_pdf(size: int, filters: int = 2) -> bytes:
    """Makes a page whose content inflates to `size` bytes."""
    content = _deflated(b"BT /F1 12 Tf (Lima) Tj ET\n", size)
    for _ in range(filters - 1):
        content = zlib.compress(content, 9)
    names = "/FlateDecode " * filters
    return _pdf(f"/Filter [{names}]".encode(), content)


def many_kids_pdf(count: int) -> bytes:
    """Makes a page tree that claims very many pages, all of them the same."""
    kids = b"3 0 R " * count
    return _pdf(b"", _PAGE, kids=kids, count=count)


def deep_pdf(depth: int) -> bytes:
    """Makes a page with deeply nested arrays."""
    return _pdf(b"", b"[" * depth + b"]" * depth + b" TJ")


def circular_pdf() -> bytes:
    """Makes a page tree that contains itself."""
    return _pdf(b"", _PAGE, kids=b"2 0 R 3 0 R ", count=1 << 30)


def parquet_bomb(rows: int, size: int) -> bytes:
    """Makes rows that all refer to one large text of a dictionary, so that the file is small."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    table = pa.table({"id": pa.array(map(str, range(rows))), "text": text})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def slow_lines() -> bytes:
    """Makes very many blank lines before a document."""
    return gzip.compress(b"\n" * (100 * MEGA) + _record(), mtime=0)


def _deflated(block: bytes, size: int) -> bytes:
    packer = zlib.compressobj(9)
    large = block * max(1, MEGA // len(block))
    pieces = [packer.compress(large) for _ in range(max(1, size // len(large)))]
    return b"".join((*pieces, packer.flush()))


def _pdf(about: bytes, content: bytes, *, kids: bytes = b"3 0 R", count: int = 1) -> bytes:
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), about, content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    written, offsets = b"%PDF-1.5\n", []
    for number, body in enumerate(bodies, start=1):
        offsets.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        written
        + b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (
            table,
            len(written),
        )
    )


def _record(**about: object) -> bytes:
    return json.dumps({"id": "a", "text": "Lima", **about}).encode()


def _unverbatim(count: int) -> bytes:
    """Makes spans that are not in the text, each of which might be quoted whole in its refusal."""
    return _record(text="x" * 100_000, facts=[{"start": 0, "end": 100_000, "value": "y"}] * count)


def _html(body: str) -> Callable[[], bytes]:
    return lambda: f"<!doctype html><title>x</title><body>{body}".encode()


DOCUMENTS: tuple[Hostile, ...] = (
    Hostile("inflating.pdf", lambda: inflating_pdf(600 * MEGA), ("memory", "broken")),
    Hostile("slow.pdf", lambda: inflating_pdf(100 * MEGA, 1), ("memory", "broken", "time", "size")),
    Hostile("kids.pdf", lambda: many_kids_pdf(5000)),
    Hostile("deep.pdf", lambda: deep_pdf(1_000_000), ("invalid",)),
    Hostile("circular.pdf", circular_pdf),
    Hostile(
        "attributes.html", _html("<p " + " ".join(f"a{n}" for n in range(100_000)) + ">Lima"), ("invalid",)
    ),
    Hostile("nested.html", _html("<div>" * 200_000 + "Lima"), ("invalid",)),
    Hostile("left-open.html", _html("<p><b>" * 20_000 + "Lima"), ("invalid",)),
    Hostile("rows.html", _html("<table>" + "x<tr>" * 100_000)),
    Hostile("entities.html", _html("&" + "a" * 500_000 + ";" + "&#x110000;&#0;&#xd800;" * 1000 + "Lima")),
    Hostile("comment.html", _html("<!--" * 1_000_000), ("invalid",)),
    Hostile("codec.html", lambda: b"<meta charset=zip><p>Lima", ("invalid",)),
    Hostile("puny.html", lambda: b"<meta charset=idna><p>" + b"Lima." * 1000),
    Hostile("brackets.md", lambda: b"[" * 20_000),
    Hostile("pairs.md", lambda: b"[" * 20_000 + b"a" + b"]" * 20_000),
    Hostile("emphasis.md", lambda: b"**a *_" * 10_000),
    Hostile("links.md", lambda: b"[a](" * 10_000),
    Hostile("quotes.md", lambda: b"> " * 100_000 + b"a", ("invalid",)),
    Hostile("table.md", lambda: b"|a" * 2000 + b"\n" + b"|-" * 2000 + b"\n" + b"a\n" * 2000),
    Hostile("html.md", lambda: b"<div>\n\n" * 5000, ("invalid",)),
    Hostile("nul.txt", lambda: b"Lima\0Lima", ("invalid",)),
    Hostile("latin.txt", lambda: b"caf\xe9" * 1000, ("invalid",)),
    Hostile("marked.txt", lambda: "Lima ‮ \u200b".encode("utf-16")),
    Hostile("half.txt", lambda: b"\xff\xfe" + b"\x00\xd8" * 10, ("invalid",)),
    Hostile("invisible.txt", lambda: "\u200b\u200c\u200d\u2060\ufeff".encode() * 100, ("invalid",)),
    Hostile("long.jsonl", lambda: b'{"id": "a", "text": "' + b"x" * (101 * MEGA) + b'"}', ("invalid",)),
    Hostile("lists.jsonl", lambda: b"[" + b"[]," * 5_000_000 + b"[]]", ("memory",)),
    Hostile("deep.jsonl", lambda: b"[" * 1_000_000 + b"]" * 1_000_000, ("invalid",)),
    Hostile("number.jsonl", lambda: b'{"id": ' + b"9" * 1_000_000 + b', "text": "Lima"}', ("invalid",)),
    Hostile("surrogate.jsonl", lambda: rb'{"id": "a", "text": "Lima \ud800"}', ("invalid",)),
    Hostile("name.jsonl", lambda: rb'{"id": "\ud800", "text": "Lima", "facts": [1]}', ("invalid",)),
    Hostile("nul.jsonl", lambda: rb'{"id": "a", "text": "Lima\u0000"}', ("invalid",)),
    Hostile(
        "inflating.jsonl.gz", lambda: gzip.compress(b"[" + b"[]," * 5_000_000 + b"[]]", mtime=0), ("memory",)
    ),
    Hostile("lines.jsonl.gz", slow_lines, ("time",)),
    Hostile("cut.jsonl.gz", lambda: gzip.compress(_record() * 1000, mtime=0)[:-9], ("invalid",)),
)
ANNOTATED: tuple[Hostile, ...] = (
    Hostile("bomb.parquet", lambda: parquet_bomb(4000, 10 * MEGA), ("memory",)),
    Hostile("spans.jsonl", lambda: _unverbatim(20_000), ("invalid",)),
    Hostile("facts.jsonl", lambda: _record(facts=[1] * 200_000), ("invalid",)),
    Hostile("huge.jsonl", lambda: _record(facts=[{"start": 10**4000, "end": 1, "value": "a"}]), ("invalid",)),
    Hostile("deep.json", lambda: b'{"data":' * 100_000 + b"}" * 100_000, ("invalid",)),
)  # fmt: skip


def written(hostile: Hostile, folder: Path) -> Path:
    path = folder / hostile.name
    path.write_bytes(hostile.make())
    return path


@contextmanager
def swapping(folder: Path, outside: Path) -> Iterator[None]:
    """Swap a folder for a link to another one and back, over and over, while the block runs."""
    link, aside, ended = folder.with_name("link"), folder.with_name("aside"), threading.Event()

    def swap() -> None:
        while not ended.is_set():
            link.symlink_to(outside)
            folder.rename(aside)
            link.rename(folder)
            folder.unlink()
            aside.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
