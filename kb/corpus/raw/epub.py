"""Reads books (EPUB) as title and plain text: the pages of their spine, in order."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from io import BytesIO
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import BadZipFile, ZipFile

from colmlm.kb.corpus.raw.html import read_html
from colmlm.kb.corpus.raw.text import Unreadable, declared_encoding, decode_text
from colmlm.kb.texts.characters import MOST_BYTES

CONTAINER, PROTECTION = "META-INF/container.xml", "META-INF/rights.xml"
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_OPF, _DC = "{http://www.idpf.org/2007/opf}", "{http://purl.org/dc/elements/1.1/}"
_PAGES = ("application/xhtml+xml", "text/html")


def read_epub(data: bytes) -> tuple[str | None, str]:
    """Give the book's title and the text of its pages, each with its heading. Raises `Unreadable`."""
    try:
        with ZipFile(BytesIO(data)) as book:
            return _book(book)
    except (BadZipFile, ElementTree.ParseError, KeyError, NotImplementedError, RuntimeError) as error:
        raise Unreadable(f"no EPUB that can be read ({error})") from error


def _book(book: ZipFile) -> tuple[str | None, str]:
    if PROTECTION in book.namelist():
        raise Unreadable("the book is protected, so its text cannot be read")
    if (
        sum(entry.file_size for entry in book.infolist() if entry.filename.endswith(("html", "htm", "xml")))
        > MOST_BYTES
    ):
        raise Unreadable(f"its pages are more than {MOST_BYTES} bytes; split it")
    root = ElementTree.fromstring(book.read(CONTAINER)).find(f".//{_CONTAINER}rootfile")
    if root is None:
        raise Unreadable("its container names no package")
    place = root.attrib["full-path"]
    package = ElementTree.fromstring(book.read(place))
    title = package.findtext(f".//{_DC}title")
    texts = [_page(book, page) for page in _spine(package, posixpath.dirname(place))]
    return (title or "").strip() or None, "\n\n".join(text for text in texts if text)


def _spine(package: Element, folder: str) -> Iterator[str]:
    """Yield where the pages that are read one after another stand in the archive."""
    items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
    for reference in package.iter(f"{_OPF}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and reference.get("linear") != "no" and item.get("media-type") in _PAGES:
            yield posixpath.normpath(posixpath.join(folder, unquote(item.attrib["href"])))


def _page(book: ZipFile, place: str) -> str:
    """Give the text of a page with its heading; nothing where it has only pictures."""
    data = book.read(place)
    try:
        title, text = read_html(decode_text(data, declared_encoding(data)))
    except Unreadable:
        return ""
    return f"{title}\n\n{text}" if title else text
