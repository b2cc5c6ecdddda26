"""Facts as CSV, page after page, with cells that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from colmlm.kb.facts.records import FactFound, FactPage

COLUMNS = (
    "fact_id", "state", "value", "question", "answer", "version",
    "corpus", "document", "title", "address", "start", "end", "created_seq", "deleted_seq", "review",
)  # fmt: skip
AT_ONCE = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class SearchPart(Protocol):
    """A search, of which a part is asked for."""

    def __call__(self, *, after: int, limit: int) -> FactPage: ...


def pages(search: SearchPart) -> Iterator[FactFound]:
    """Gives all facts that a search finds."""
    after: int | None = 0
    while after is not None:
        page = search(after=after, limit=AT_ONCE)
        yield from page.facts
        after = page.next_after


def lines(facts: Iterable[FactFound]) -> Iterator[str]:
    """Gives the lines of a table of facts: its header, and one for each."""
    yield _line(COLUMNS)
    for fact in facts:
        yield _line(_row(fact))


def _line(cells: Iterable[object]) -> str:
    written = StringIO()
    csv.writer(written).writerow(_harmless(cell) for cell in cells)
    return written.getvalue()


def _harmless(cell: object) -> object:
    """Puts an apostrophe before what a spreadsheet would compute."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _row(fact: FactFound) -> tuple[object, ...]:
    state = "erased" if fact.erased_seq else "deleted" if fact.deleted_seq else "live"
    said = (fact.fact_id, state, fact.value, fact.question, fact.answer, fact.version)
    source, sample = fact.source, fact.sample
    place: tuple[object, ...] = (None,) * 6
    if source is not None:
        place = (source.corpus, source.external_id, source.title, source.uri, source.start, source.end)
    elif sample is not None:  # a release tells no offsets
        place = (sample.corpus, sample.sample_id, None, None, None, None)
    return (*said, *place, fact.created_seq, fact.deleted_seq, fact.review)
