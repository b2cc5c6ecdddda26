"""The reading process: reads files piece by piece for its parent, one after the other, under limits.

`kb.corpus.raw.reading` starts it. It confines what a hostile file can do, and holds nothing worth stealing: no secret,
no connection, and no file but the one it reads.

A dump of MediaWiki (XML) gives a document an article, as its newest revision in the dump says it. Pages of other
namespaces than that of articles, and redirects, are passed over.
"""

from __future__ import annotations

import csv
import os
import re
import resource
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, cast
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element, ParseError, iterparse

import msgspec

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    Parsed,
    Refusal,
    is_blank,
    parse_json,
    parse_line,
    parse_record,
    too_long,
    unstorable_characters,
)
from colmlm.kb.corpus.raw.blocks import (
    FieldNames,
    ReadPiece,
    Unreadable,
    declared_encoding,
    decode_text,
    marked_encoding,
    normalise_text,
    refuse_document,
)
from colmlm.kb.corpus.raw.files import (
    WIDEST,
    ReaderReport,
    ReadRequest,
    opened_file,
    receive_message,
    send_message,
)
from colmlm.kb.corpus.raw.html import heading_line, read_epub, read_html, read_markdown, read_word
from colmlm.kb.corpus.squad import read_squad, squad_identity
from colmlm.kb.errors import count_of
from colmlm.kb.texts.characters import MOST_BYTES, DamagedFile, DocumentLimits, read_lines, unpack_file


@dataclass(slots=True)
class _Wiki:
    """The site of a dump: the address of its pages, and the prefixes of links to files and categories."""

    xmlns: str
    pages: str = ""
    beside: set[str] = field(default_factory=lambda: {"file", "image", "category"})

    def take(self, about: Element) -> None:
        base = about.findtext(f"{self.xmlns}base") or ""
        self.pages = base.rpartition("/")[0]
        for namespace in about.iter(f"{self.xmlns}namespace"):
            if namespace.get("key") in (_FILES, _CATEGORIES) and namespace.text:
                self.beside.add(namespace.text.casefold())

    def parse_page(self, page: Element, revision: Element | None, where: str, path: Path) -> Parsed | None:
        """Give the document of a page; None if the page is a redirect or no article in wikitext."""
        said = {name: (page.findtext(f"{self.xmlns}{name}") or "").strip() for name in ("ns", "title", "id")}
        is_redirect = page.find(f"{self.xmlns}redirect") is not None
        if said["ns"] not in ("", _ARTICLES) or is_redirect or revision is None:
            return None
        if (revision.findtext(f"{self.xmlns}model") or "wikitext") != "wikitext":
            return None
        title = said["title"]
        text = plain_text(revision.findtext(f"{self.xmlns}text") or "", self.beside)
        if is_blank(text):
            return Parsed(
                None, (Refusal(title or where, 0, "no text in it, apart from templates and tables"),)
            )
        uri = f"{self.pages}/{quote(title.replace(' ', '_'))}" if self.pages and title else path.as_uri()
        number = revision.findtext(f"{self.xmlns}id")
        return Parsed(
            AnnotatedDocument(said["id"] or title or where, text, (), title or None, uri, None, number)
        )


def read_wiki(path: Path, path_to_open: Path, ask: ReadRequest) -> Iterator[ReadPiece]:
    """Yield the articles of a MediaWiki dump, after page `ask.after`; other pages give pieces without a document."""
    number = 0
    try:
        with path_to_open.open("rb") as file, unpack_file(file, path) as stream:
            for number, parsed in enumerate(_pages(stream, path, ask.after), start=1):
                yield ReadPiece(parsed, number, file.tell())
    except (DamagedFile, ParseError) as error:
        what = str(error) if isinstance(error, DamagedFile) else f"no XML that can be read ({error})"
        yield refuse_document(path.name, f"{what}, after page {number}; the rest was not read", number)


def _pages(stream: IO[bytes], path: Path, after: int) -> Iterator[Parsed | None]:
    events = iterparse(stream, events=("start", "end"))
    _, root = next(events)
    xmlns, _, name = root.tag.rpartition("}")
    if name != "mediawiki":
        raise Unreadable(f"XML of another kind ({name}): only MediaWiki dumps are read; convert it to text")
    wiki, newest, number = _Wiki(f"{xmlns}}}" if xmlns else ""), None, 0
    for event, element in events:
        match element.tag.removeprefix(wiki.xmlns), event:
            case "siteinfo", "end":
                wiki.take(element)
            case "revision", "end":
                if newest is not None:
                    newest.clear()  # so that a page with its history does not have to fit into memory
                newest = element
            case "page", "end":
                number += 1
                yield (
                    wiki.parse_page(element, newest, f"{path.name}:{number}", path)
                    if number > after
                    else None
                )
                newest = None
                root.clear()


# Turns wikitext into plain text, with mwparserfromhell: sentences, headings and lists.
#
# What stands beside the text is left out: templates, tables, notes, files and categories. A template may show
# text, but only the wiki it belongs to knows which.

_BESIDE = frozenset((
    "ref", "references", "gallery", "table", "math", "chem", "timeline", "score", "imagemap", "graph", "mapframe",
    "templatestyles", "hr",
))  # fmt: skip
_SWITCHES = re.compile(r"__[A-Z]+__")
_EMPTY_PARENTHESES = re.compile(r"[ \t]?\([ \t]*[,;:]?[ \t]*\)")  # where only a template stood
_BLANKS, _LINES = re.compile(r"[ \t\u00a0]+"), re.compile(r" *\n *")
_EMPTY_LINES = re.compile(r"\n{3,}")


def plain_text(wikitext: str, beside: Collection[str] = ()) -> str:
    """Give the visible text of a page. `beside` has lower-case prefixes of links that show nothing, such as ``file``.

    Raises `Unreadable` where the parser is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise Unreadable("MediaWiki dumps need a parser: pip install 'colmlm[wiki]'") from error
    text = "".join(_visible_text(mwparserfromhell.parse(wikitext), beside))
    text = _EMPTY_PARENTHESES.sub("", _SWITCHES.sub("", text))
    return _EMPTY_LINES.sub("\n\n", _LINES.sub("\n", _BLANKS.sub(" ", text))).strip()


def _visible_text(code: Any, beside: Collection[str]) -> Iterator[str]:
    """Yield the visible text of the nodes of parsed wikitext."""
    from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Text, Wikilink

    for node in code.nodes if code is not None else ():
        match node:
            case Text():
                yield node.value
            case HTMLEntity():
                yield node.normalize()
            case Heading():
                yield from ("\n\n", *_visible_text(node.title, beside), "\n\n")
            case Wikilink() if str(node.title).partition(":")[0].strip().casefold() not in beside:
                shown = node.title if node.text is None else node.text
                yield "".join(_visible_text(shown, beside)).removeprefix(":")
            case ExternalLink():
                yield from _visible_text(node.title if node.brackets else node.url, beside)
            case Tag() if (tag := str(node.tag).strip().casefold()) not in _BESIDE:
                yield "\n" if tag == "br" else "".join(_visible_text(node.contents, beside))


# Records: JSON Lines, rows of tables and of Parquet, each a document without facts.
#
# The usual fields are ``id``, ``title``, ``text``, and perhaps ``url``, ``licence`` and ``revision``; a user
# may name others.


def parse_raw_line(line: bytes, where: str, path: Path, fields: FieldNames) -> Parsed:
    """Parse one line as a document without facts; a document without an address gets that of its file."""
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused_record(where, "not a JSON object")
    name = record.get("id")
    named = str(name) if isinstance(name, str | int) else where
    if record.get("facts") and fields.text is None:  # who names the field of the text wants it read as a text
        how = "with --format annotated, or read its texts alone with --text-field"
        return _refused_record(named, f"annotated already; ingest the file as it is, {how}")
    try:
        chosen = fields.choose_fields(record)
    except Unreadable as error:
        return _refused_record(named, f"no text in it: {error}")
    return raw_document(record, chosen, where, path)


def raw_document(record: Mapping[str, Any], chosen: Mapping[str, str], where: str, path: Path) -> Parsed:
    """Make a document of a record from the chosen fields; if no field is its id, it gets a digest as id."""
    parts = {part: _number_as_text(record.get(name)) for part, name in chosen.items()}
    if isinstance(text := parts["text"], str):
        parts["text"] = text = text.replace("\r\n", "\n").replace("\r", "\n")
        if "id" not in chosen:
            parts["id"] = squad_identity(_string(parts.get("title")), text)
    if not parts.get("title"):
        parts["title"] = None
    parts["uri"] = parts.get("uri") or path.as_uri()
    return parse_record({**parts, "facts": []}, where)


def _number_as_text(value: object) -> object:
    """Give a whole number as text, since ids, titles and revisions are often numbers; give other values as they are."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _refused_record(document: str, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, 0, reason),))


# Reads tables (CSV and TSV): a document a row, by the names of the columns in the first row.

_SEPARATORS = ",;\t"  # of csv files that spreadsheets write, by the user's country


def read_table(path: Path, path_to_open: Path, ask: ReadRequest) -> Iterator[ReadPiece]:
    """Yield the rows of a table as documents. A row that cannot be read is refused with its line."""
    csv.field_size_limit(MOST_BYTES)
    done = 0
    try:
        with path_to_open.open("rb") as file, unpack_file(file, path) as packed:
            for piece in _rows_table(cast("BufferedReader", packed), path, ask):
                done = piece.line
                yield piece._replace(reached=file.tell())
    except (DamagedFile, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, DamagedFile) else f"not {error.encoding}"
        yield refuse_document(path.name, f"{reason}, after line {done}; the rest was not read", done)


def _rows_table(packed: BufferedReader, path: Path, ask: ReadRequest) -> Iterator[ReadPiece]:
    # What is not in the encoding becomes lone surrogates, so that a row with such bytes is refused by itself.
    encoding = marked_encoding(packed.peek(4)) or ask.encoding or "utf-8"
    lines = TextIOWrapper(packed, encoding, errors="surrogateescape", newline="")
    first = lines.readline().removeprefix("\ufeff")
    separator = "\t" if ".tsv" in path.name.lower() else max(_SEPARATORS, key=first.count)
    rows = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    header = next(rows, [])
    chosen = ask.fields.choose_fields(header)
    if twice := [name for name in chosen.values() if header.count(name) > 1]:
        raise Unreadable(f"two columns are named {twice[0]!r}; rename one")
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
        return f"{count_of(len(row), 'cell')} under {count_of(len(header), 'column')}"
    if (fault := unstorable_characters("".join(row))) is None:
        return None
    if "NUL" in fault[1]:
        return f"it has {fault[1]}"
    return "not UTF-8; convert the file, or name its encoding with --encoding"


# Reads Parquet files without marked facts: a document a row, by the names of the columns.


def read_columns(path: Path, path_to_open: Path, ask: ReadRequest) -> Iterator[ReadPiece]:
    """Yield the rows of a Parquet file as documents. Only columns that hold a part of a document are read."""
    from colmlm.kb.corpus.parquet import read_rows  # imported here, since importing pyarrow takes time

    chosen: dict[str, str] = {}
    reached = 0

    def choose(names: list[str]) -> list[str]:
        if "facts" in names:
            raise Unreadable("annotated already; ingest the file as it is, with --format parquet")
        chosen.update(ask.fields.choose_fields(names))
        return list(dict.fromkeys(chosen.values()))

    def on_bytes(so_far: int) -> None:
        nonlocal reached
        reached = so_far

    for number, (where, row) in enumerate(read_rows(path, choose, on_bytes, path_to_open), start=1):
        parsed = Parsed(None, (row,)) if isinstance(row, Refusal) else raw_document(row, chosen, where, path)
        yield ReadPiece(parsed, number, reached)


FORMATS = ("annotated", "parquet", "squad")  # the formats of annotated files
BY_LINE: dict[str, Callable[[bytes, str, Path, FieldNames], Parsed]] = {
    "annotated": lambda line, where, *_: parse_line(line, where),
    "records": parse_raw_line,
}
BY_ROW: dict[str, Callable[[Path, Path, ReadRequest], Iterator[ReadPiece]]] = {
    "table": read_table,
    "columns": read_columns,
    "wiki": read_wiki,
}


def read_pieces(ask: ReadRequest) -> Iterator[ReadPiece]:
    """Yield the documents of a file and its refusals, in order."""
    path = Path(ask.path)
    name = ask.external_id or path.name
    try:
        with opened_file(path, ask.origin) as path_to_open:
            if ask.kind in BY_LINE:
                yield from _parse_lines(path, path_to_open, ask)
            elif ask.kind in BY_ROW:
                yield from BY_ROW[ask.kind](path, path_to_open, ask)
            elif ask.kind in FORMATS:
                yield from _rows(path, ask.kind)
            else:
                yield ReadPiece(Parsed(_document(ask, path, path_to_open)), 1, path_to_open.stat().st_size)
    except Unreadable as error:
        yield refuse_document(name, str(error))
    except OSError as error:
        yield refuse_document(name, f"cannot be read: {error.strerror or error}")


def _parse_lines(path: Path, path_to_open: Path, ask: ReadRequest) -> Iterator[ReadPiece]:
    """Yield a piece for each line after line `ask.after`, and an empty piece for blank lines before it."""
    parse, done = BY_LINE[ask.kind], 0
    try:
        for number, content, reached in read_lines(path, path_to_open):
            where = f"{path.name}:{number}"
            if number > ask.after:
                # After blank lines, so that the parent knows which line is next.
                if number > max(done, ask.after) + 1:
                    yield ReadPiece(None, number - 1, reached)
                if content is None:
                    yield ReadPiece(too_long(where), number, reached)
                else:
                    yield ReadPiece(parse(content, where, path, ask.fields), number, reached)
            done = number
    except DamagedFile as error:
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


def _document(ask: ReadRequest, path: Path, path_to_open: Path) -> AnnotatedDocument:
    if (size := path_to_open.stat().st_size) > MOST_BYTES:
        raise Unreadable(f"{size} bytes, and a document has at most {MOST_BYTES}; split it")
    data = path_to_open.read_bytes()
    if not data.strip():
        raise Unreadable("the file is empty; leave it out")
    title, text = _text(ask.kind, data, ask.encoding)
    text = normalise_text(text)
    if title is None or unstorable_characters(title) is not None:
        title = heading_line(text) or _title_from_name(path if ask.uri is None else _path_of_address(ask.uri))
    return AnnotatedDocument(ask.external_id, text, title=title, uri=ask.uri or path.as_uri())


def _text(kind: str, data: bytes, encoding: str | None) -> tuple[str | None, str]:
    if kind == "pdf":
        from colmlm.kb.corpus.raw.pdf import read_pdf  # here, since PDFium is a library of megabytes

        return read_pdf(data)
    if kind == "word":
        return read_word(data)
    if kind == "epub":
        return read_epub(data)
    if kind == "html":
        return read_html(decode_text(data, encoding or declared_encoding(data)))
    text = decode_text(data, encoding)
    if kind == "markdown":
        return read_markdown(text)
    return None, text


def _path_of_address(uri: str) -> PurePosixPath:
    """Give the path part of an address (URL), or its host if the path is empty."""
    parts = urlsplit(uri)
    return PurePosixPath(unquote(parts.path).strip("/") or parts.netloc)


def _title_from_name(path: PurePath) -> str:
    """Make a title of a file's name: without its suffix, and with spaces for underscores and hyphens."""
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split()) or path.name


_ARTICLES, _FILES, _CATEGORIES = "0", "6", "14"  # numbers of namespaces, the same in every wiki


_MOST_REFUSALS = 1000  # refusals reported of one document
_FARTHEST = 2**53 - 1  # the largest offset that JSON holds exactly
_MOST_QUOTED = 1000  # characters of each text in a refusal


def main() -> None:
    limits = DocumentLimits(*map(int, sys.argv[1:]))
    asked, telling = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):  # keeps a parser's own output out of the messages
        os.dup2(nothing, number)
    _confine(limits)
    send_message(telling, _encode_message(ReaderReport()))  # tells the parent that the process runs
    while (message := receive_message(asked)) is not None:
        for told in _answer_request(msgspec.json.decode(message, type=ReadRequest), limits):
            send_message(telling, told)


def _confine(limits: DocumentLimits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":  # on other systems the limit counts something else, or has no effect
        memory = limits.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _allow(limits: DocumentLimits) -> None:
    """Set the limit of processor time for the next document, beyond which the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + 1 + limits.seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def _answer_request(ask: ReadRequest, limits: DocumentLimits) -> Iterator[bytes]:
    """Yield the reports (JSON) on a file: one for each piece read, then its end, or why reading ended before."""
    line, reached = ask.after, 0
    _allow(limits)
    try:
        for piece in read_pieces(ask):
            yield _encode_piece(piece, limits)
            line, reached = piece.line, piece.reached
            _allow(limits)
        yield _encode_message(ReaderReport(line, reached, end=True))
    except MemoryError:
        yield _encode_message(ReaderReport(line, reached, breach="memory"))
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is why this document was given up
        yield _encode_message(ReaderReport(line, reached, breach="broken", how=type(error).__name__))


def _encode_piece(piece: ReadPiece, limits: DocumentLimits) -> bytes:
    parsed = piece.parsed
    if parsed is not None and parsed.refusals:
        parsed = Parsed(parsed.document, tuple(_refusals(parsed)), parsed.overlaps_resolved)
    document = None if parsed is None else parsed.document
    if document is None or len(document.text) <= limits.characters:
        message = _encode_message(ReaderReport(piece.line, piece.reached, parsed))
        if len(message) <= WIDEST * limits.characters:
            return message
    too_large = Refusal(
        "" if document is None else document.external_id[:_MOST_QUOTED], 0, limits.sentence("size"), "size"
    )
    return _encode_message(ReaderReport(piece.line, piece.reached, Parsed(None, (too_large,))))


def _refusals(parsed: Parsed) -> Iterator[Refusal]:
    """Yield the refusals to report: at most 1,000 and a note, with texts that are cut short and can be stored."""
    for one in parsed.refusals[:_MOST_REFUSALS]:
        yield Refusal(_cut_words(one.document), min(one.offset, _FARTHEST), _cut_words(one.reason), one.code)
    if (more := len(parsed.refusals) - _MOST_REFUSALS) > 0:
        last = parsed.refusals[-1]
        yield Refusal(_cut_words(last.document), last.offset, f"... and {more} more like these", last.code)


def _cut_words(words: str) -> str:
    words = words if len(words) <= _MOST_QUOTED else f"{words[:_MOST_QUOTED]}..."
    return words.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\ufffd")


def _encode_message(told: ReaderReport) -> bytes:
    return msgspec.json.encode(told)


if __name__ == "__main__":
    main()
