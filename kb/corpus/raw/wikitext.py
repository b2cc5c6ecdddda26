"""Turns wikitext into plain text, with mwparserfromhell: sentences, headings and lists.

What stands beside the text is left out: templates, tables, notes, files and categories. A template may show text, but
only the wiki it belongs to knows which.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from colmlm.kb.corpus.raw.text import Unreadable

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
    """Gives what a page says. `beside` has the first words of links that show nothing, such as ``file``, in small.

    Raises `Unreadable` where the parser is not installed.
    """
    try:
        import mwparserfromhell
    except ImportError as error:
        raise Unreadable("MediaWiki dumps need a parser: pip install 'colmlm[wiki]'") from error
    text = "".join(_said(mwparserfromhell.parse(wikitext), beside))
    text = _HOLLOW.sub("", _SWITCHES.sub("", text))
    return _EMPTY_LINES.sub("\n\n", _LINES.sub("\n", _BLANKS.sub(" ", text))).strip()


def _said(code: Any, beside: Collection[str]) -> Iterator[str]:
    """Yields what the nodes of parsed wikitext show."""
    from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Text, Wikilink

    for node in code.nodes if code is not None else ():
        match node:
            case Text():
                yield node.value
            case HTMLEntity():
                yield node.normalize()
            case Heading():
                yield from ("\n\n", *_said(node.title, beside), "\n\n")
            case Wikilink() if str(node.title).partition(":")[0].strip().casefold() not in beside:
                shown = node.title if node.text is None else node.text
                yield "".join(_said(shown, beside)).removeprefix(":")
            case ExternalLink():
                yield from _said(node.title if node.brackets else node.url, beside)
            case Tag() if (tag := str(node.tag).strip().casefold()) not in _BESIDE:
                yield "\n" if tag == "br" else "".join(_said(node.contents, beside))
