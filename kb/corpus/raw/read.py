"""Reads one file piece by piece. It runs in the reading process, which confines what a hostile file can do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    Parsed,
    Refusal,
    parse_json,
    parse_line,
    parse_record,
    too_long,
    unstorable_characters,
)
from colmlm.kb.corpus.raw.blocks import Fields, ReadPiece, refuse_document
from colmlm.kb.corpus.raw.files import opened_file
from colmlm.kb.corpus.raw.html import heading_line
from colmlm.kb.corpus.raw.text import (
    Unreadable,
    declared_encoding,
    decode_text,
    marked_encoding,
    normalise_text,
)
from colmlm.kb.corpus.raw.wiki import read_wiki
from colmlm.kb.corpus.raw.wire import Ask
from colmlm.kb.corpus.squad import read_squad, squad_identity
from colmlm.kb.texts.characters import MOST_BYTES, Damaged, read_lines, unpacked

# Records: JSON Lines, rows of tables and of Parquet, each a document without facts.
#
# The usual fields are ``id``, ``title``, ``text``, and perhaps ``url``, ``licence`` and ``revision``; a user
# may name others.


def parse_raw_line(line: bytes, where: str, path: Path, fields: Fields) -> Parsed:
    """Parse one line as a document without facts; where it has no address, its file's is taken."""
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused(where, "not a JSON object")
    name = record.get("id")
    named = str(name) if isinstance(name, str | int) else where
    if record.get("facts"):
        return _refused(named, "annotated already; ingest the file as it is, with --format annotated")
    try:
        chosen = fields.of(record)
    except Unreadable as error:
        return _refused(named, f"no text in it: {error}")
    return raw_document(record, chosen, where, path)


def raw_document(record: Mapping[str, Any], chosen: Mapping[str, str], where: str, path: Path) -> Parsed:
    """Make a document of a record, by the fields that hold its parts; one without an id is known by a digest."""
    parts = {part: _as_text(record.get(name)) for part, name in chosen.items()}
    if isinstance(text := parts["text"], str):
        parts["text"] = text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "id" not in chosen:
            parts["id"] = squad_identity(_string(parts.get("title")), text)
    if not parts.get("title"):
        parts["title"] = None
    parts["uri"] = parts.get("uri") or path.as_uri()
    return parse_record({**parts, "facts": []}, where)


def _as_text(value: object) -> object:
    """Give whole numbers as text, since ids, titles and revisions often are such."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _refused(document: str, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, 0, reason),))


# Reads tables (CSV and TSV): a document a row, by the names of the columns in the first row.

_SEPARATORS = ",;\t"  # of csv files that spreadsheets write, by the user's country


def read_table(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    """Yield the rows as documents. A row that cannot be read is refused with its line, and the next are read."""
    csv.field_size_limit(MOST_BYTES)
    done = 0
    try:
        with place.open("rb") as file, unpacked(file, path) as packed:
            for piece in _rows_table(cast("BufferedReader", packed), path, ask):
                done = piece.line
                yield piece._replace(reached=file.tell())
    except (Damaged, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, Damaged) else f"not {error.encoding}"
        yield refuse_document(path.name, f"{reason}, after line {done}; the rest was not read", done)


def _rows_table(packed: BufferedReader, path: Path, ask: Ask) -> Iterator[ReadPiece]:
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
            yield refuse_document(where, f"no row of a table: {error}", line)
            continue
        if row and (fault := _fault(row, header)) is not None:
            yield refuse_document(where, fault, line)
        elif row:
            yield ReadPiece(raw_document(dict(zip(header, row, strict=True)), chosen, where, path), line, 0)


def _fault(row: list[str], header: list[str]) -> str | None:
    if len(row) != len(header):
        return f"{len(row)} cells under {len(header)} columns"
    if (fault := unstorable_characters("".join(row))) is None:
        return None
    if "NUL" in fault[1]:
        return f"it has {fault[1]}"
    return "not UTF-8; convert the file, or name its encoding with --encoding"


# Reads Parquet files without marked facts: a document a row, by the names of the columns.


def read_columns(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    """Yield the rows as documents. Only the columns that hold a part of a document are read."""
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


FORMATS = ("annotated", "parquet", "squad")  # the formats of annotated files
BY_LINE: dict[str, Callable[[bytes, str, Path, Fields], Parsed]] = {
    "annotated": lambda line, where, *_: parse_line(line, where),
    "records": parse_raw_line,
}
BY_ROW: dict[str, Callable[[Path, Path, Ask], Iterator[ReadPiece]]] = {
    "table": read_table,
    "columns": read_columns,
    "wiki": read_wiki,
}


def read_pieces(ask: Ask) -> Iterator[ReadPiece]:
    """Yield the documents of a file and its refusals, in order."""
    path = Path(ask.path)
    name = ask.external_id or path.name
    try:
        with opened_file(path, ask.origin) as place:
            if ask.kind in BY_LINE:
                yield from _lines(path, place, ask)
            elif ask.kind in BY_ROW:
                yield from BY_ROW[ask.kind](path, place, ask)
            elif ask.kind in FORMATS:
                yield from _rows(path, ask.kind)
            else:
                yield ReadPiece(Parsed(_document(ask, path, place)), 1, place.stat().st_size)
    except Unreadable as error:
        yield refuse_document(name, str(error))
    except OSError as error:
        yield refuse_document(name, f"cannot be read: {error.strerror or error}")


def _lines(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    parse, done = BY_LINE[ask.kind], 0
    try:
        for number, content, reached in read_lines(path, place):
            where = f"{path.name}:{number}"
            if number > ask.after:
                if (
                    number > max(done, ask.after) + 1
                ):  # after blank lines, so that the parent knows which line is next
                    yield ReadPiece(None, number - 1, reached)
                if content is None:
                    yield ReadPiece(too_long(where), number, reached)
                else:
                    yield ReadPiece(parse(content, where, path, ask.fields), number, reached)
            done = number
    except Damaged as error:
        yield refuse_document(path.name, f"{error}, after line {done}", done)


def _rows(path: Path, format_: str) -> Iterator[ReadPiece]:
    reached = [0]
    if format_ == "parquet":
        from colmlm.kb.corpus.parquet import read_parquet  # imported here, since importing pyarrow takes time

        rows = read_parquet(path, lambda so_far: reached.append(so_far))
    else:
        rows = read_squad(path)
    for number, parsed in enumerate(rows, start=1):
        yield ReadPiece(parsed, number, reached[-1])
        del reached[:-1]


def _document(ask: Ask, path: Path, place: Path) -> AnnotatedDocument:
    if (size := place.stat().st_size) > MOST_BYTES:
        raise Unreadable(f"{size} bytes, and a document has at most {MOST_BYTES}; split it")
    data = place.read_bytes()
    if not data.strip():
        raise Unreadable("the file is empty")
    title, text = _text(ask.kind, data, ask.encoding)
    text = normalise_text(text)
    if title is None or unstorable_characters(title) is not None:
        title = heading_line(text) or _named(path if ask.uri is None else _place(ask.uri))
    return AnnotatedDocument(ask.external_id, text, title=title, uri=ask.uri or path.as_uri())


def _text(kind: str, data: bytes, encoding: str | None) -> tuple[str | None, str]:
    if kind == "pdf":
        from colmlm.kb.corpus.raw.pdf import read_pdf  # here, since PDFium is a library of megabytes

        return read_pdf(data)
    if kind == "word":
        from colmlm.kb.corpus.raw.word import read_word

        return read_word(data)
    if kind == "epub":
        from colmlm.kb.corpus.raw.epub import read_epub

        return read_epub(data)
    if kind == "html":
        from colmlm.kb.corpus.raw.html import read_html

        return read_html(decode_text(data, encoding or declared_encoding(data)))
    text = decode_text(data, encoding)
    if kind == "markdown":
        from colmlm.kb.corpus.raw.markdown import read_markdown

        return read_markdown(text)
    return None, text


def _place(uri: str) -> PurePosixPath:
    """Give the path that an address names on its host; the host where it names none."""
    parts = urlsplit(uri)
    return PurePosixPath(unquote(parts.path).strip("/") or parts.netloc)


def _named(path: PurePath) -> str:
    """Make a title of the file's name."""
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split()) or path.name
