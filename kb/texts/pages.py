"""Pages of a text that was printed: a form feed ends each but the last."""

from __future__ import annotations

PAGE_END = "\f"


def page_of(text: str, offset: int) -> int | None:
    """Gives the number of the page, from 1, that the character at `offset` is on; None where a text has no pages."""
    return text.count(PAGE_END, 0, offset) + 1 if PAGE_END in text else None


def numbered(text: str) -> str:
    """Gives a text with a line before each page that says its number."""
    if PAGE_END not in text:
        return text
    return "\n\n".join(f"[page {n}]\n{page.strip()}" for n, page in enumerate(text.split(PAGE_END), start=1))
