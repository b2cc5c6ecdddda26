"""Reads one file piece by piece. It runs in the reading process, which confines what a hostile file can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import unquote, urlsplit

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, parse_line, too_long, unstorable
from colmlm.kb.corpus.raw.columns import read_columns
from colmlm.kb.corpus.raw.fields import Fields
from colmlm.kb.corpus.raw.files import held
from colmlm.kb.corpus.raw.headings import heading
from colmlm.kb.corpus.raw.pieces import ReadPiece, refused
from colmlm.kb.corpus.raw.records import parse_raw_line
from colmlm.kb.corpus.raw.table import read_table
from colmlm.kb.corpus.raw.text import Unreadable, declared_encoding, decode, normal
from colmlm.kb.corpus.raw.wiki import read_wiki
from colmlm.kb.corpus.raw.wire import Ask
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.texts.lines import MOST_BYTES, Damaged, read_lines

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
    """Yields the documents of a file and its refusals, in order."""
    path = Path(ask.path)
    name = ask.external_id or path.name
    try:
        with held(path, ask.origin) as place:
            if ask.kind in BY_LINE:
                yield from _lines(path, place, ask)
            elif ask.kind in BY_ROW:
                yield from BY_ROW[ask.kind](path, place, ask)
            elif ask.kind in FORMATS:
                yield from _rows(path, ask.kind)
            else:
                yield ReadPiece(Parsed(_document(ask, path, place)), 1, place.stat().st_size)
    except Unreadable as error:
        yield refused(name, str(error))
    except OSError as error:
        yield refused(name, f"cannot be read: {error.strerror or error}")


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
        yield refused(path.name, f"{error}, after line {done}", done)


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
    text = normal(text)
    if title is None or unstorable(title) is not None:
        title = heading(text) or _named(path if ask.uri is None else _place(ask.uri))
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

        return read_html(decode(data, encoding or declared_encoding(data)))
    text = decode(data, encoding)
    if kind == "markdown":
        from colmlm.kb.corpus.raw.markdown import read_markdown

        return read_markdown(text)
    return None, text


def _place(uri: str) -> PurePosixPath:
    """Gives the path that an address names on its host; the host where it names none."""
    parts = urlsplit(uri)
    return PurePosixPath(unquote(parts.path).strip("/") or parts.netloc)


def _named(path: PurePath) -> str:
    """Makes a title of the file's name."""
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split()) or path.name
