"""Tables as cards: on a phone every cell names its column, since there is no room for a row of headings."""

from __future__ import annotations

import re
from itertools import zip_longest

from markupsafe import Markup

_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")


def with_columns(table: Markup) -> Markup:
    """Writes the heading of its column on every cell of a table, where the style finds it."""
    head, body, rows = str(table).partition("<tbody>")
    names = [Markup(name).striptags() for name in _HEADING.findall(head)]
    return Markup(head + body + _ROW.sub(lambda row: _named(row[0], names), rows))  # its texts are escaped


def _named(row: str, names: list[str]) -> str:
    first, *cells = _CELL.split(row)
    labels = [str(Markup('<td data-column="{}"').format(name)) for name in names[: len(cells)]]
    return first + "".join(label + cell for label, cell in zip_longest(labels, cells, fillvalue="<td"))
