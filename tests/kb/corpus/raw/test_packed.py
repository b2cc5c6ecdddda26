"""Word documents and books become documents; what only looks like one is refused by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kb.corpus.raw.packed import docx, epub, packed
from tests.kb.corpus.raw.test_read import document, read

PAGES = {
    "one.xhtml": "<html><head><title>x</title></head><body><h1>Piers</h1><p>There are nine.</p></body></html>",
    "cover.xhtml": "<html><body><img src='a.png'/></body></html>",
    "notes.xhtml": "<html><body><p>A note.</p></body></html>",
    "two.xhtml": "<html><body><p>It opened in 1834.</p></body></html>",
}


def test_a_word_document_has_the_title_and_the_text_that_it_shows(tmp_path: Path) -> None:
    written = docx(
        ["The harbour of Lundvik opened in 1834.", "It is deep &amp; wide."],
        heading="The harbour",
        table=[["year", "ships"], ["1834", "12"]],
    )
    got = document(tmp_path / "harbour.docx", written)
    assert got.title == "The harbour"
    assert (
        got.text
        == "The harbour of Lundvik opened in 1834.\n\nIt is deep & wide.\n\nyear | ships\n\n1834 | 12"
    )


def test_a_word_document_without_headings_is_named_like_its_file(tmp_path: Path) -> None:
    assert document(tmp_path / "opening-hours.docx", docx(["Monday: closed."])).title == "opening hours"


def test_a_book_is_its_pages_in_their_order(tmp_path: Path) -> None:
    got = document(tmp_path / "book.epub", epub("Lundvik", PAGES, beside=["notes.xhtml"]))
    assert got.title == "Lundvik"
    assert got.text == "Piers\n\nThere are nine.\n\nIt opened in 1834."


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.docx", b"PK no archive", "no Word document that can be read"),
        ("a.docx", packed({"other.xml": "<a/>"}), "no Word document that can be read"),
        ("a.docx", docx([]), "no text in it"),
        ("a.epub", b"no archive", "no EPUB that can be read"),
        ("a.epub", packed({"mimetype": "application/epub+zip"}), "no EPUB that can be read"),
        ("a.epub", packed({"META-INF/container.xml": "<container"}), "no EPUB that can be read"),
        ("a.epub", packed({"META-INF/container.xml": "<container/>"}), "its container names no package"),
        ("a.epub", epub("Lundvik", {"cover.xhtml": PAGES["cover.xhtml"]}), "no text in it"),
        ("a.epub", epub("Lundvik", PAGES, **{"META-INF/rights.xml": "<rights/>"}), "the book is protected"),
    ],
)
def test_what_is_no_document_says_why(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    said = read(tmp_path / name, content)
    assert isinstance(said, str) and reason in said


def test_an_archive_that_swells_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    said = read(tmp_path / "bomb.epub", epub("Lundvik", {"one.xhtml": "<p>" + " " * 101_000_000 + "</p>"}))
    assert isinstance(said, str) and "split it" in said
    assert document(tmp_path / "book.epub", epub("Lundvik", PAGES)).title == "Lundvik"
