"""Reads Markdown as title and plain text, with markdown-it: the text that the rendered page shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from colmlm.kb.corpus.raw.blocks import CELL_END, HARD_BREAK, Blocks
from colmlm.kb.corpus.raw.html import html_text

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(?P<quote>[\"']?)(.+?)(?P=quote)[ \t]*$", re.MULTILINE)


def read_markdown(text: str) -> tuple[str | None, str]:
    """Give the title (of the front matter, or the first heading of the first level) and the text without markup.

    A heading at the start that is the title is left out of the text. Code stays as it is; pictures are left out.
    """
    front = _FRONT_MATTER.match(text)
    title = None
    if front is not None:
        found = _FRONT_TITLE.search(front.group(1) or "")
        title = found.group(2).strip() if found else None
        text = text[front.end() :]
    blocks = Blocks()
    heading = _collect(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text), blocks)
    title = title or heading
    if title is not None:
        blocks.drop_first(title)
    return title, blocks.text()


def _collect(tokens: Sequence[Token], blocks: Blocks) -> str | None:
    """Add the text of the tokens to the blocks, and give the first heading of the first level."""
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
    """Give the text of one inline token."""
    if token.type in ("text", "code_inline", "text_special"):
        return token.content
    if token.type == "softbreak":
        return " "
    return HARD_BREAK if token.type == "hardbreak" else ""
