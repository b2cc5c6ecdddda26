"""Reads Parquet files without marked facts: a document a row, by the names of the columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from colmlm.kb.corpus.format import Parsed, Refusal
from colmlm.kb.corpus.raw.pieces import ReadPiece
from colmlm.kb.corpus.raw.records import raw_document
from colmlm.kb.corpus.raw.text import Unreadable
from colmlm.kb.corpus.raw.wire import Ask


def read_columns(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    """Yields the rows as documents. Only the columns that hold a part of a document are read."""
    from colmlm.kb.corpus.parquet import read_rows  # imported here, since importing pyarrow takes time

    chosen: dict[str, str] = {}
    reached = 0

    def choose(names: list[str]) -> list[str]:
        if "facts" in names:
            raise Unreadable("annotated already; ingest the file as it is, with --format parquet")
        chosen.update(ask.fields.of(names))
        return list(dict.fromkeys(chosen.values()))

    def on_bytes(so_far: int) -> None:
        nonlocal reached
        reached = so_far

    for number, (where, row) in enumerate(read_rows(path, choose, on_bytes, place), start=1):
        parsed = Parsed(None, (row,)) if isinstance(row, Refusal) else raw_document(row, chosen, where, path)
        yield ReadPiece(parsed, number, reached)
