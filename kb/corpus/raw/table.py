"""Reads tables (CSV and TSV): a document a row, by the names of the columns in the first row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import cast

from colmlm.kb.corpus.format import unstorable
from colmlm.kb.corpus.raw.pieces import ReadPiece, refused
from colmlm.kb.corpus.raw.records import raw_document
from colmlm.kb.corpus.raw.text import Unreadable, marked_encoding
from colmlm.kb.corpus.raw.wire import Ask
from colmlm.kb.texts.lines import MOST_BYTES, Damaged, unpacked

_SEPARATORS = ",;\t"  # of csv files that spreadsheets write, by the user's country


def read_table(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    """Yields the rows as documents. A row that cannot be read is refused with its line, and the next are read."""
    csv.field_size_limit(MOST_BYTES)
    done = 0
    try:
        with place.open("rb") as file, unpacked(file, path) as packed:
            for piece in _rows(cast("BufferedReader", packed), path, ask):
                done = piece.line
                yield piece._replace(reached=file.tell())
    except (Damaged, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, Damaged) else f"not {error.encoding}"
        yield refused(path.name, f"{reason}, after line {done}; the rest was not read", done)


def _rows(packed: BufferedReader, path: Path, ask: Ask) -> Iterator[ReadPiece]:
    # What is not in the encoding becomes lone surrogates, so that a row with such bytes is refused by itself.
    encoding = marked_encoding(packed.peek(4)) or ask.encoding or "utf-8"
    lines = TextIOWrapper(packed, encoding, errors="surrogateescape", newline="")
    first = lines.readline().removeprefix("\ufeff")
    separator = "\t" if ".tsv" in path.name.lower() else max(_SEPARATORS, key=first.count)
    rows = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    header = next(rows, [])
    chosen = ask.fields.of(header)
    if twice := [name for name in chosen.values() if header.count(name) > 1]:
        raise Unreadable(f"two columns are named {twice[0]!r}")
    while True:
        line = rows.line_num + 1
        where = f"{path.name}:{line}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield refused(where, f"no row of a table: {error}", line)
            continue
        if row and (fault := _fault(row, header)) is not None:
            yield refused(where, fault, line)
        elif row:
            yield ReadPiece(raw_document(dict(zip(header, row, strict=True)), chosen, where, path), line, 0)


def _fault(row: list[str], header: list[str]) -> str | None:
    if len(row) != len(header):
        return f"{len(row)} cells under {len(header)} columns"
    if (fault := unstorable("".join(row))) is None:
        return None
    if "NUL" in fault[1]:
        return f"it has {fault[1]}"
    return "not UTF-8; convert the file, or name its encoding with --encoding"
