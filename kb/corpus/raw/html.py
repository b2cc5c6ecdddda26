"""Reads HTML as title and plain text, with Lexbor: the page's main part, by rules that stay the same in every release.

It leaves out what HTML itself marks as secondary (navigation, asides, footers, forms, scripts, hidden parts). An
extractor that guesses the article from its looks would do better on pages of the web, but its next release would
give other texts, and so replace every document.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from colmlm.kb.corpus.raw.blocks import CELL_END, HARD_BREAK, Blocks
from colmlm.kb.corpus.raw.text import Unreadable

_ASIDE = (
    "aside audio button canvas dialog embed footer form frameset head iframe input link map meta nav noembed noframes"
    " noscript object script select style svg template textarea title video"
)
_BESIDE = frozenset(_ASIDE.split())
_APART = (
    "address article blockquote body caption center dd details div dl dt fieldset figcaption figure h1 h2 h3 h4 h5 h6"
    " header hgroup hr html legend li main ol p pre section summary table tbody tfoot thead tr ul"
)
_BLOCKS = frozenset(_APART.split())
_CELLS, _LISTS = ("td", "th"), ("ul", "ol", "dl")
_ROLES = frozenset(("banner", "complementary", "contentinfo", "dialog", "navigation", "search"))
_NO_DISPLAY = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_OPEN = (  # tags that are never closed, or often not
    "area base br col colgroup dd dt hr img input li link meta option p source tbody td tfoot th thead tr wbr"
)
_UNCLOSED = frozenset(_OPEN.split())
_DEEPEST = 2000  # levels; a parser's time grows with the square of their number
_WIDEST = 2000  # attributes of one tag; a parser's time grows with the square of their number
_NO_TAGS = re.compile(
    r"<(script|style|textarea|title|xmp)\b.*?(?:</\1|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL | re.IGNORECASE
)
_VALUE = r"=\s*(?:\"[^\"]*\"|'[^']*')"
_WHOLE_TAG = re.compile(rf"<[a-zA-Z](?:[^>=]|{_VALUE}|=)*+")
_VALUES = re.compile(_VALUE)
_ATTRIBUTE = re.compile(r"[\s/](?=[^\s/>])")


def read_html(text: str) -> tuple[str | None, str]:
    """Give the title (the only first heading, or else the page's own) and the text of the page's main part.

    That is ``<main>``, ``<article>`` or the whole page. Raises `Unreadable`.
    """
    if _depth(text) > _DEEPEST:
        raise Unreadable(f"its elements are nested more than {_DEEPEST} deep; that is no page for people")
    if _width(text) > _WIDEST:
        raise Unreadable(f"a tag has more than {_WIDEST} attributes; that is no page for people")
    tree = LexborHTMLParser(text)
    root = _main(tree)
    if root is None:
        return None, ""
    headings = root.css("h1")
    title = _flat(headings[0].text()) if len(headings) == 1 else ""
    if not title and (page_title := tree.css_first("head > title")) is not None:
        title = _flat(page_title.text())
    blocks = Blocks()
    _collect(root, blocks, in_page=root.tag == "body")
    blocks.drop_first(title)
    return title or None, blocks.text()


def html_text(fragment: str) -> str:
    """Give the text of a piece of HTML."""
    return read_html(f"<body>{fragment}</body>")[1]


def _depth(text: str) -> int:
    """Estimate how deep elements are nested; tags that are mostly left open do not count."""
    deepest = depth = 0
    for found in _TAG.finditer(text):
        closes, tag = found.groups()
        if tag.lower() not in _UNCLOSED:
            depth = max(0, depth - 1) if closes else depth + 1
            deepest = max(deepest, depth)
    return deepest


def _width(text: str) -> int:
    """Give the largest number of attributes of a tag."""
    tags = (tag.group() for tag in _WHOLE_TAG.finditer(_NO_TAGS.sub(" ", text)))
    return max(
        (len(_ATTRIBUTE.findall(_VALUES.sub("=", tag))) for tag in tags if len(tag) > 2 * _WIDEST), default=0
    )


def _main(tree: LexborHTMLParser) -> Any:
    """Give the main part where the page names exactly one, else its body."""
    for selector in ("main, [role=main]", "article"):
        found = tree.css(selector)
        if len(found) == 1 and found[0].text(strip=True):
            return found[0]
    return tree.body


def _collect(root: Any, blocks: Blocks, *, in_page: bool) -> None:
    """Walk the tree without recursion, as pages may be nested deep; with `in_page` it leaves out a page's header."""
    inside: Counter[str] = Counter()
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, leaves = waiting.pop()
        if leaves:
            inside[node.tag] -= 1
            _leave(node.tag, blocks, inside)
        elif node.is_text_node:
            said = node.text_content or ""
            blocks.add(said if inside["pre"] else _BLANKS.sub(" ", said))
        elif node is root or _is_shown(node, in_page):
            _enter(node.tag, blocks, inside)
            inside[node.tag] += 1
            waiting.append((node, True))
            child = node.last_child
            while child is not None:
                waiting.append((child, False))
                child = child.prev


def _enter(tag: str, blocks: Blocks, inside: Counter[str]) -> None:
    if tag == "br":
        blocks.add("\n" if inside["pre"] else HARD_BREAK)
    elif tag in _BLOCKS:
        _part(blocks, inside)


def _leave(tag: str, blocks: Blocks, inside: Counter[str]) -> None:
    if tag in _CELLS:
        blocks.add(CELL_END)
    elif tag == "tr":
        blocks.strip_end(CELL_END)
        blocks.close(after="\n")
    elif tag == "pre":
        blocks.close(verbatim=True)
    elif tag in _BLOCKS:
        _part(blocks, inside)


def _part(blocks: Blocks, inside: Counter[str]) -> None:
    """End the open block; a cell stays one block whatever is in it, and blocks in an item become lines."""
    if any(inside[tag] for tag in _CELLS):
        blocks.add(" ")
    else:
        blocks.close(after="\n" if any(inside[tag] for tag in _LISTS) else "\n\n")


def _is_shown(node: Any, in_page: bool) -> bool:
    if not node.is_element_node or node.tag in _BESIDE or (in_page and _is_page_header(node)):
        return False
    attributes = node.attributes
    return not (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or attributes.get("role") in _ROLES
        or _NO_DISPLAY.search(attributes.get("style") or "")
    )


def _is_page_header(node: Any) -> bool:
    """Say whether this is the header of the page as a whole, one without a heading of the first level."""
    return bool(node.tag == "header" and node.parent.tag == "body" and node.css_first("h1") is None)


def _flat(text: str) -> str:
    return " ".join(text.split())


# The title that a text gives itself where its format has none: a line "Title:" at its beginning, or a
# heading.

_LONGEST, _MOST_WORDS = 100, 12
_SAID = re.compile(r"\A\s*(?:\S[^\n]*\n){0,9}?title:[ \t]*(\S[^\n]*)$", re.IGNORECASE | re.MULTILINE)
_FIRST = re.compile(r"\A\s*(\S[^\n]*)\n(?:[ \t]*[=\-~*_#]{3,}[ \t]*\n|[ \t]*\n)\s*\S")
_STOPS = (".", ",", ";", ":", "!", "…")


def heading_line(text: str) -> str | None:
    """Give the first line where it looks like a heading: short, without a stop, and apart from the text below it."""
    if (said := _SAID.match(text)) is not None and (title := _short(said.group(1))):
        return title
    first = _FIRST.match(text)
    title = _short(first.group(1)) if first else None
    return None if title is None or title.endswith(_STOPS) else title


def _short(line: str) -> str | None:
    """Give a line without blanks and signs around it, or None if it is too long to be a title or has no letter."""
    title = " ".join(line.split()).strip("#=*_~ ")
    fits = len(title) <= _LONGEST and len(title.split()) <= _MOST_WORDS
    return title if fits and any(character.isalpha() for character in title) else None
