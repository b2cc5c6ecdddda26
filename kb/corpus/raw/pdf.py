"""Reads PDF as title and plain text, with PDFium: the text layer, with its lines joined to paragraphs.

A page is a drawing: headers, page numbers and columns come in the order in which they are drawn. A form feed on a line
of its own ends each page but the last, so that the page of a fact follows from its place in the text.
"""

from __future__ import annotations

import re

import pypdfium2

from colmlm.kb.corpus.raw.blocks import Unreadable, normalise_text
from colmlm.kb.corpus.raw.html import heading_line
from colmlm.kb.errors import count_of
from colmlm.kb.texts.characters import PAGE_END

_NOT_A_TITLE = re.compile(
    r"^(?:microsoft \w+ - |untitled|.*\.(?:docx?|indd|odt|pdf|tex|dvi|rtf|txt)$)", re.IGNORECASE
)
_HYPHENS = "\x02\ufffe\xad"  # how PDFium gives a hyphen that only divides a word at a line end
_SHORT = 0.6  # a line shorter than this share of the page's longest line ends a paragraph
_PASSWORD = pypdfium2.raw.FPDF_ERR_PASSWORD


def read_pdf(data: bytes) -> tuple[str | None, str]:
    """Give the title in the file's metadata, or that of its first line, and the text. Raises `Unreadable`."""
    try:
        with pypdfium2.PdfDocument(data) as document:
            title = " ".join(document.get_metadata_value("Title").replace("\0", "").split())
            pages = [_page_text(document, number) for number in range(len(document))]
    except pypdfium2.PdfiumError as error:
        if error.err_code == _PASSWORD:
            raise Unreadable("encrypted with a password; save a copy without one") from error
        raise Unreadable(f"not a PDF that can be read ({error}); save it again") from error
    if not any(pages):
        raise Unreadable(
            f"{count_of(len(pages), 'page')} without a text layer, so probably scanned; run text recognition (OCR) "
            "on it first"
        )
    text = normalise_text(f"\n{PAGE_END}\n".join(pages))
    if not title or _NOT_A_TITLE.match(title):
        first = next(page for page in pages if page)
        return heading_line(first.replace("\n", "\n\n", 1)), text  # a line by itself was short on its page
    return title, text


def _page_text(document: pypdfium2.PdfDocument, number: int) -> str:
    page = document[number]
    text_page = page.get_textpage()
    try:
        return reflow_lines(text_page.get_text_range())
    finally:
        text_page.close()
        page.close()


def reflow_lines(page: str) -> str:
    """Join the lines of a page to paragraphs: a line continues in the next unless it is short.

    A short line without a stop, after one that ends a sentence, is a heading and begins a paragraph.
    """
    lines = [line.strip() for line in page.replace("\r\n", "\n").split("\n")]
    short = _SHORT * max(map(len, lines), default=0)
    pieces: list[str] = []
    before = ""
    for line in lines:
        if not line:
            pieces.append("\n\n")
            continue
        if before.endswith((".", "!", "?")) and len(line) < short and line[-1] not in ".!?,;:":
            pieces.append("\n")
        pieces.append(line)
        if line[-1] not in _HYPHENS:
            pieces.append("\n" if len(line) < short else " ")
        before = line
    text = re.sub(rf"[{_HYPHENS}]", "", "".join(pieces))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" *\n *", "\n", text.replace(PAGE_END, "\n"))).strip()
