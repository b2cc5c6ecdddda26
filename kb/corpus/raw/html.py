"""Reads HTML, and what is made of it or shown as it, as title and plain text.

Of a page, with Lexbor, it takes the main part, by rules that stay the same in every release. It leaves out what HTML
itself marks as secondary (navigation, asides, footers, forms, scripts, hidden parts). An extractor that guesses the
article from its looks would do better on pages of the web, but its next release would give other texts, and so replace
every document. Of books (EPUB) it reads the pages of their spine, in order. Mammoth makes HTML of Word documents (docx)
by their styles, and markdown-it tells what a rendered page of Markdown shows.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.parsers.expat import ExpatError
from zipfile import BadZipFile, ZipFile

from selectolax.lexbor import LexborHTMLParser

from colmlm.kb.corpus.raw.blocks import (
    CELL_END,
    HARD_BREAK,
    Blocks,
    Unreadable,
    declared_encoding,
    decode_text,
)
from colmlm.kb.texts.characters import MOST_BYTES

if TYPE_CHECKING:
    from markdown_it.token import Token

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

    The main part is ``<main>``, ``<article>`` or the whole page. Raises `Unreadable`.
    """
    if _depth(text) > _DEEPEST:
        raise Unreadable(
            f"its elements are nested more than {_DEEPEST} deep; that is no page for people; leave it out"
        )
    if _width(text) > _WIDEST:
        raise Unreadable(
            f"a tag has more than {_WIDEST} attributes; that is no page for people; leave it out"
        )
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
    """Give the largest number of attributes that a tag of the page has; 0 if no tag is long enough to be refused."""
    tags = (tag.group() for tag in _WHOLE_TAG.finditer(_NO_TAGS.sub(" ", text)))
    return max(
        (len(_ATTRIBUTE.findall(_VALUES.sub("=", tag))) for tag in tags if len(tag) > 2 * _WIDEST), default=0
    )


def _main(tree: LexborHTMLParser) -> Any:
    """Give the page's main element, else its article, if there is exactly one with text; else the body."""
    for selector in ("main, [role=main]", "article"):
        found = tree.css(selector)
        if len(found) == 1 and found[0].text(strip=True):
            return found[0]
    return tree.body


def _collect(root: Any, blocks: Blocks, *, in_page: bool) -> None:
    """Add the visible text of a tree to the blocks, without recursion; with `in_page` without the page's header."""
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
            _begin_element(node.tag, blocks, inside)
            inside[node.tag] += 1
            waiting.append((node, True))
            child = node.last_child
            while child is not None:
                waiting.append((child, False))
                child = child.prev


def _begin_element(tag: str, blocks: Blocks, inside: Counter[str]) -> None:
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
    """End the open block, unless it is within a table cell; within a list the next block follows on a new line."""
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
    """Give the title of a text: from a line "Title:", or its first line if that looks like a heading; else None."""
    if (said := _SAID.match(text)) is not None and (title := _short(said.group(1))):
        return title
    first = _FIRST.match(text)
    title = _short(first.group(1)) if first else None
    return None if title is None or title.endswith(_STOPS) else title


def _short(line: str) -> str | None:
    """Give a line as a title, without blanks and marks around it; None if it is too long for one or has no letter."""
    title = " ".join(line.split()).strip("#=*_~ ")
    fits = len(title) <= _LONGEST and len(title.split()) <= _MOST_WORDS
    return title if fits and any(character.isalpha() for character in title) else None


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
        raise Unreadable(f"no EPUB that can be read ({error}); save it again") from error


def _book(book: ZipFile) -> tuple[str | None, str]:
    if PROTECTION in book.namelist():
        raise Unreadable("the book is protected; take a copy that is not")
    if (
        sum(entry.file_size for entry in book.infolist() if entry.filename.endswith(("html", "htm", "xml")))
        > MOST_BYTES
    ):
        raise Unreadable(f"its pages are more than {MOST_BYTES} bytes; split it")
    root = ElementTree.fromstring(book.read(CONTAINER)).find(f".//{_CONTAINER}rootfile")
    if root is None:
        raise Unreadable("its container names no package; save it again")
    place = root.attrib["full-path"]
    package = ElementTree.fromstring(book.read(place))
    title = package.findtext(f".//{_DC}title")
    texts = [_page(book, page) for page in _spine(package, posixpath.dirname(place))]
    return (title or "").strip() or None, "\n\n".join(text for text in texts if text)


def _spine(package: Element, folder: str) -> Iterator[str]:
    """Yield the paths in the archive of the book's pages, in reading order."""
    items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
    for reference in package.iter(f"{_OPF}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and reference.get("linear") != "no" and item.get("media-type") in _PAGES:
            yield posixpath.normpath(posixpath.join(folder, unquote(item.attrib["href"])))


def _page(book: ZipFile, place: str) -> str:
    """Give the text of a page of a book after its heading; empty if it has no readable text."""
    data = book.read(place)
    try:
        title, text = read_html(decode_text(data, declared_encoding(data)))
    except Unreadable:
        return ""
    return f"{title}\n\n{text}" if title else text


def read_word(data: bytes) -> tuple[str | None, str]:
    """Give the title (the only first heading) and the text, with lists, tables and notes; pictures are left out.

    Raises `Unreadable`.
    """
    import mammoth  # here, as Markdown's: most files are of neither kind

    try:
        page = mammoth.convert_to_html(BytesIO(data), convert_image=_nothing).value
    except (BadZipFile, ExpatError, KeyError, OSError) as error:
        raise Unreadable(f"no Word document that can be read ({error}); save it as docx again") from error
    if not page:
        raise Unreadable("no text in it; pictures are not read: recognise their text (OCR) first")
    return read_html(page)


def _nothing(_image: Any) -> Sequence[Any]:
    return []


_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(?P<quote>[\"']?)(.+?)(?P=quote)[ \t]*$", re.MULTILINE)


def read_markdown(text: str) -> tuple[str | None, str]:
    """Give the title (of the front matter, or the first heading of the first level) and the text without markup.

    A heading at the start that is the title is left out of the text. Code stays as it is; pictures are left out.
    """
    from markdown_it import MarkdownIt

    front = _FRONT_MATTER.match(text)
    title = None
    if front is not None:
        found = _FRONT_TITLE.search(front.group(1) or "")
        title = found.group(2).strip() if found else None
        text = text[front.end() :]
    blocks = Blocks()
    heading = _collect_tokens(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text), blocks)
    title = title or heading
    if title is not None:
        blocks.drop_first(title)
    return title, blocks.text()


def _collect_tokens(tokens: Sequence[Token], blocks: Blocks) -> str | None:
    """Add the text of the tokens to the blocks, and give the first heading of the first level, or None."""
    heading: str | None = None
    lists = 0
    for token in tokens:
        kind = token.type
        if kind == "inline":
            for child in token.children or ():
                blocks.add(_inline(child))
        elif kind in ("fence", "code_block"):
            blocks.close()
            blocks.add(token.content)
            blocks.close(verbatim=True)
        elif kind == "html_block":
            blocks.close()
            blocks.add(html_text(token.content))
            blocks.close(verbatim=True)
        elif kind in ("bullet_list_open", "ordered_list_open"):
            blocks.close(after="\n")
            lists += 1
        elif kind in ("bullet_list_close", "ordered_list_close"):
            lists -= 1
            blocks.close(after="\n" if lists else "\n\n")
        elif kind in ("th_close", "td_close"):
            blocks.add(CELL_END)
        elif kind == "tr_close":
            blocks.strip_end(CELL_END)
            blocks.close(after="\n")
        elif kind in ("paragraph_close", "table_close"):
            blocks.close(after="\n" if lists else "\n\n")
        elif kind == "heading_close":
            closed = blocks.close()
            heading = heading or (closed if token.tag == "h1" and closed else None)
    return heading


def _inline(token: Token) -> str:
    """Give the text of one inline token; empty for other tokens than texts, code and line breaks."""
    if token.type in ("text", "code_inline", "text_special"):
        return token.content
    if token.type == "softbreak":
        return " "
    return HARD_BREAK if token.type == "hardbreak" else ""
