"""Reads MediaWiki dumps (XML): a document an article, as its newest revision in the dump says it.

Pages of other namespaces than that of articles, and redirects, are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError, iterparse

from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal, is_blank
from colmlm.kb.corpus.raw.blocks import ReadPiece, refuse_document
from colmlm.kb.corpus.raw.text import Unreadable
from colmlm.kb.corpus.raw.wire import Ask
from colmlm.kb.texts.characters import Damaged, unpacked

_ARTICLES, _FILES, _CATEGORIES = "0", "6", "14"  # numbers of namespaces, the same in every wiki


@dataclass(slots=True)
class _Wiki:
    """What the head of a dump says: the address of its pages, and what links to files and categories begin with."""

    xmlns: str
    pages: str = ""
    beside: set[str] = field(default_factory=lambda: {"file", "image", "category"})

    def take(self, about: Element) -> None:
        base = about.findtext(f"{self.xmlns}base") or ""
        self.pages = base.rpartition("/")[0]
        for namespace in about.iter(f"{self.xmlns}namespace"):
            if namespace.get("key") in (_FILES, _CATEGORIES) and namespace.text:
                self.beside.add(namespace.text.casefold())

    def parsed(self, page: Element, revision: Element | None, where: str, path: Path) -> Parsed | None:
        """Give the document of a page; None where it is no article, or only leads to one."""
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


def read_wiki(path: Path, place: Path, ask: Ask) -> Iterator[ReadPiece]:
    """Yield the articles past page `ask.after`, and nothing for each page that is none."""
    number = 0
    try:
        with place.open("rb") as file, unpacked(file, path) as stream:
            for number, parsed in enumerate(_pages(stream, path, ask.after), start=1):
                yield ReadPiece(parsed, number, file.tell())
    except (Damaged, ParseError) as error:
        what = str(error) if isinstance(error, Damaged) else f"no XML that can be read ({error})"
        yield refuse_document(path.name, f"{what}, after page {number}; the rest was not read", number)


def _pages(stream: IO[bytes], path: Path, after: int) -> Iterator[Parsed | None]:
    events = iterparse(stream, events=("start", "end"))
    _, root = next(events)
    xmlns, _, name = root.tag.rpartition("}")
    if name != "mediawiki":
        raise Unreadable(f"XML of another kind ({name}): only MediaWiki dumps are read")
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
                yield wiki.parsed(element, newest, f"{path.name}:{number}", path) if number > after else None
                newest = None
                root.clear()


# Turns wikitext into plain text, with mwparserfromhell: sentences, headings and lists.
#
# What stands beside the text is left out: templates, tables, notes, files and categories. A template may show
# text, but only the wiki it belongs to knows which.

_BESIDE = frozenset(
    [
        "ref",
        "references",
        "gallery",
        "table",
        "math",
        "chem",
        "timeline",
        "score",
        "imagemap",
        "graph",
        "mapframe",
        "templatestyles",
        "hr",
    ]
)
_SWITCHES = re.compile(r"__[A-Z]+__")
_HOLLOW = re.compile(r"[ \t]?\([ \t]*[,;:]?[ \t]*\)")  # where only a template stood
_BLANKS, _LINES = re.compile(r"[ \t\u00a0]+"), re.compile(r" *\n *")
_EMPTY_LINES = re.compile(r"\n{3,}")


def plain_text(wikitext: str, beside: Collection[str] = ()) -> str:
    """Give what a page says. `beside` has the first words of links that show nothing, such as ``file``, in small.

    Raises `Unreadable` where the parser is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise Unreadable("MediaWiki dumps need a parser: pip install 'colmlm[wiki]'") from error
    text = "".join(_visible_text(mwparserfromhell.parse(wikitext), beside))
    text = _HOLLOW.sub("", _SWITCHES.sub("", text))
    return _EMPTY_LINES.sub("\n\n", _LINES.sub("\n", _BLANKS.sub(" ", text))).strip()


def _visible_text(code: Any, beside: Collection[str]) -> Iterator[str]:
    """Yield what the nodes of parsed wikitext show."""
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
