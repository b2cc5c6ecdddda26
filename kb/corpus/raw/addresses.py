"""Lists of addresses: a line each, or a sitemap."""

from __future__ import annotations

import html
import re
from pathlib import Path

from colmlm.kb.corpus.format import is_blank
from colmlm.kb.corpus.raw.text import Unreadable, decode

MOST_ADDRESSES = 10_000
_MOST_BYTES = 50_000_000  # of a sitemap, by its own specification
_SITEMAP, _INDEX = "<urlset", "<sitemapindex"
_PLACE = re.compile(r"<loc>\s*(?:<!\[CDATA\[)?([^<\]]*)")


def read_addresses(path: Path) -> list[str]:
    """Gives the addresses in a file, each once. In a list, lines that begin with # are remarks. Raises `Unreadable`."""
    if path.stat().st_size > _MOST_BYTES:
        raise Unreadable(f"more than {_MOST_BYTES} bytes; split it")
    text = decode(path.read_bytes())
    if _INDEX in text:
        raise Unreadable("an index of sitemaps; fetch those it names, and give one of them")
    lines = _PLACE.findall(text) if _SITEMAP in text else text.splitlines()
    said = (html.unescape(line).strip() if _SITEMAP in text else line.strip() for line in lines)
    found = list(dict.fromkeys(line for line in said if not is_blank(line) and not line.startswith("#")))
    if not found:
        raise Unreadable("no address in it")
    if len(found) > MOST_ADDRESSES:
        raise Unreadable(
            f"{len(found)} addresses, and at most {MOST_ADDRESSES} are fetched at once; split it"
        )
    return found
