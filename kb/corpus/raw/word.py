"""Reads Word documents (docx) as title and plain text, with Mammoth, which makes HTML of them by their styles."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any
from xml.parsers.expat import ExpatError
from zipfile import BadZipFile

import mammoth

from colmlm.kb.corpus.raw.html import read_html
from colmlm.kb.corpus.raw.text import Unreadable


def read_word(data: bytes) -> tuple[str | None, str]:
    """Give the title (the only first heading) and the text, with lists, tables and notes; pictures are left out.

    Raises `Unreadable`.
    """
    try:
        page = mammoth.convert_to_html(BytesIO(data), convert_image=_nothing).value
    except (BadZipFile, ExpatError, KeyError, OSError) as error:
        raise Unreadable(f"no Word document that can be read ({error}); save it as docx again") from error
    if not page:
        raise Unreadable("no text in it")
    return read_html(page)


def _nothing(_image: Any) -> Sequence[Any]:
    return []
