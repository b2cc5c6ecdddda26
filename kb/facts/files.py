"""Files of facts: edits and verdicts that people write into them, and tables of facts as CSV.

Edits and verdicts are CSV with a header, or a JSON object a line. An edit has fact_id, value and question; a field that
is empty, null or left out stays as it is. A verdict has fact_id and verdict ("accept", "reject" or "propose"), and the
version and the review that were judged, where they are known. If any row cannot be used, nothing is done, and each such
row is named with its line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any, Protocol, cast

from colmlm.kb.errors import FactNotFound, InvalidValue, count_of
from colmlm.kb.facts.records import OUTCOMES, REVIEWS, FactEdit, Review, ReviewVerdict, VerdictKind
from colmlm.kb.log.audit import check_text

if TYPE_CHECKING:
    from colmlm.kb.facts.records import FactFound, FactPage, FactRecord

EDIT_COLUMNS = ("fact_id", "value", "question")
LONGEST = {"value": 10_000, "question": 2000}  # characters
MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be used: its line in the file, and why."""

    line: int
    cause: str


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """The change that a row makes to a fact. If its value or question stays, both fields of that are None."""

    line: int
    fact_id: int
    was_value: str | None
    value: str | None
    was_question: str | None
    question: str | None


@dataclass(frozen=True, slots=True)
class BulkEdit:
    """The edits of a file, the rows that are refused, and the number of rows that would change nothing."""

    edits: tuple[PlannedEdit, ...]
    refused: tuple[RefusedRow, ...]
    unchanged: int

    @property
    def fact_edits(self) -> list[FactEdit]:
        return [FactEdit(one.fact_id, one.value, one.question) for one in self.edits]


def plan_edits(text: str, show_many: Callable[[Sequence[int]], list[FactRecord]]) -> BulkEdit:
    """Read the edits in the rows of a file, and compare them with their facts, which `show_many` reads."""
    rows: dict[int, tuple[int, FactEdit]] = {}
    refused: list[RefusedRow] = []
    for line, row in rows_of(text):
        try:
            one = _fact_edit_of_row(row)
            if one.fact_id in rows:
                raise ValueError(f"fact {one.fact_id} is in line {rows[one.fact_id][0]} already")
            rows[one.fact_id] = line, one
        except ValueError as error:
            refused.append(RefusedRow(line, str(error)))
    facts, missing = _facts(list(rows), show_many)
    edits: list[PlannedEdit] = []
    for fact_id, (line, one) in rows.items():
        if fact_id in missing:
            refused.append(RefusedRow(line, f"there is no fact {fact_id}"))
        elif facts[fact_id].deleted_seq is not None:
            gone = "deleted" if facts[fact_id].erased_seq is None else "erased"
            refused.append(RefusedRow(line, f"fact {fact_id} is {gone}"))
        else:
            edits += _edits(line, one, facts[fact_id])
    unchanged = 0 if refused else len(rows) - len(edits)
    return BulkEdit(tuple(edits), tuple(sorted(refused, key=lambda row: row.line)), unchanged)


def _facts(
    fact_ids: list[int], show_many: Callable[[Sequence[int]], list[FactRecord]]
) -> tuple[dict[int, FactRecord], set[int]]:
    """Give these facts by id, and the ids that no fact has."""
    missing: set[int] = set()
    while wanted := [fact_id for fact_id in fact_ids if fact_id not in missing]:
        try:
            return {fact.fact_id: fact for fact in show_many(wanted)}, missing
        except FactNotFound as error:
            missing.update(error.fact_ids)
    return {}, missing


def _edits(line: int, one: FactEdit, fact: FactRecord) -> Iterator[PlannedEdit]:
    states = fact.review == "proposed"  # what a row repeats of such a fact accepts it
    value = one.value if one.value != fact.value or states else None
    question = one.question if one.question != fact.question or states else None
    if value is not None or question is not None:
        was_value, was_question = fact.value if value else None, fact.question if question else None
        yield PlannedEdit(line, one.fact_id, was_value, value, was_question, question)


def rows_of(text: str, columns: Sequence[str] = EDIT_COLUMNS) -> Iterator[tuple[int, Any]]:
    """Yield each row of a CSV or JSON Lines file with its first line; a `ValueError` in place of an unreadable row."""
    text = text.removeprefix("\ufeff")
    return _of_json(text) if text.lstrip().startswith("{") else _of_csv(text, columns)


def _of_json(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, ValueError("it is not a JSON object")


def _of_csv(text: str, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, ValueError(f"it is not CSV: {error}")
            return
        if header is None:
            header = [name.strip() for name in fields]
            if "fact_id" not in header or len(set(header)) < len(header):
                yield line, ValueError(f"the first line must name the columns: {', '.join(columns)}")
                return
        elif len(fields) > len(header):
            yield (
                line,
                ValueError(f"it has {count_of(len(fields), 'field')}, and the first line {len(header)}"),
            )
        elif any(fields):
            yield line, {name: said for name, said in zip(header, fields, strict=False) if said}


def _fact_edit_of_row(row: Any) -> FactEdit:
    """Read the edit in a row. Raises `ValueError` with the cause if the row cannot be used."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    if unknown := sorted(row.keys() - set(EDIT_COLUMNS)):
        raise ValueError(f"there is no column {', '.join(unknown)}; there are {', '.join(EDIT_COLUMNS)}")
    one = FactEdit(id_of(row.get("fact_id")), row.get("value"), row.get("question"))
    for name, limit in LONGEST.items():
        _check(name, getattr(one, name), limit)
    if one.value is None and one.question is None:
        raise ValueError("it has neither a value nor a question")
    return one


def id_of(said: Any) -> int:
    """Read a fact id from an integer or its digits. Raises `ValueError` for anything else."""
    if isinstance(said, str) and said.strip().isascii() and said.strip().isdecimal() and len(said) < 30:
        said = int(said)
    if type(said) is not int or not 0 < said <= MAX_ID:
        raise ValueError(f"its fact_id is no id of a fact, such as 12, but {said!r:.40}")
    return said


def _check(name: str, said: Any, limit: int) -> None:
    if said is None:
        return
    if not isinstance(said, str):
        raise ValueError(f"its {name} is no text, but {said!r:.40}")
    try:
        check_text(name, said, blank=False, limit=limit)
    except InvalidValue as error:
        raise ValueError(f"its {error.field} is not valid: {error.cause}") from error


VERDICT_COLUMNS = ("fact_id", "verdict", "version", "review")
ShowMany = Callable[[Sequence[int]], "list[FactRecord]"]


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """The verdicts of a file, and the rows that are refused; if a row is refused, there are no verdicts."""

    verdicts: tuple[ReviewVerdict, ...]
    refused: tuple[RefusedRow, ...]


@dataclass(frozen=True, slots=True)
class _VerdictRow:
    fact_id: int
    verdict: VerdictKind
    version: int | None
    review: Review | None


def judge_named(fact_ids: Sequence[int], verdict: VerdictKind, show_many: ShowMany) -> list[ReviewVerdict]:
    """Make this verdict on each of these facts, with the version and review it has now. Raises `FactNotFound`."""
    return _as_seen([_VerdictRow(fact_id, verdict, None, None) for fact_id in fact_ids], show_many)


def read_verdicts(text: str, show_many: ShowMany) -> JudgedFile:
    """Read the verdicts of a file; a missing version or review is taken from the fact now. Raises `FactNotFound`."""
    rows: dict[int, _VerdictRow] = {}
    lines: dict[int, int] = {}
    refused: list[RefusedRow] = []
    for line, said in rows_of(text, VERDICT_COLUMNS):
        try:
            one = _verdict_row(said)
            if (first := lines.setdefault(one.fact_id, line)) != line:
                raise ValueError(f"line {first} of this file gives fact {one.fact_id} a verdict already")
            rows[one.fact_id] = one
        except ValueError as error:
            refused.append(RefusedRow(line, str(error)))
    return JudgedFile(() if refused else tuple(_as_seen(list(rows.values()), show_many)), tuple(refused))


def _as_seen(rows: list[_VerdictRow], show_many: ShowMany) -> list[ReviewVerdict]:
    facts = {fact.fact_id: fact for fact in show_many([one.fact_id for one in rows])} if rows else {}
    return [
        ReviewVerdict(
            one.fact_id,
            one.verdict,
            one.version or facts[one.fact_id].version,
            one.review or facts[one.fact_id].review,
        )
        for one in rows
    ]


def _verdict_row(said: Any) -> _VerdictRow:
    """Read the verdict in a row. Raises `ValueError` with the cause if the row cannot be used."""
    if isinstance(said, ValueError):
        raise said
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    if unknown := sorted(said.keys() - set(VERDICT_COLUMNS)):
        raise ValueError(f"there is no column {', '.join(unknown)}; there are {', '.join(VERDICT_COLUMNS)}")
    verdict, review, version = said.get("verdict"), said.get("review"), said.get("version")
    if not isinstance(verdict, str) or verdict not in OUTCOMES:
        raise ValueError(f"its verdict is none of {', '.join(OUTCOMES)}, but {verdict!r:.40}")
    if review is not None and review not in REVIEWS:
        raise ValueError(f"its review is none of {', '.join(REVIEWS)}, but {review!r:.40}")
    try:
        version = None if version is None else id_of(version)
    except ValueError as error:
        raise ValueError(f"its version is no number, such as 1, but {version!r:.40}") from error
    return _VerdictRow(id_of(said.get("fact_id")), verdict, version, cast(Review | None, review))


TABLE_COLUMNS = (
    "fact_id", "state", "value", "question", "answer", "version",
    "corpus", "document", "title", "address", "start", "end", "created_seq", "deleted_seq", "review",
)  # fmt: skip
AT_ONCE = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class SearchPart(Protocol):
    """A search that gives a page of its facts: at most `limit`, past the place `after`."""

    def __call__(self, *, after: int, limit: int) -> FactPage: ...


def find_page_by_page(search: SearchPart) -> Iterator[FactFound]:
    """Yield all facts that a search finds, by pages of `AT_ONCE` facts."""
    after: int | None = 0
    while after is not None:
        page = search(after=after, limit=AT_ONCE)
        yield from page.facts
        after = page.next_after


def csv_lines(facts: Iterable[FactFound]) -> Iterator[str]:
    """Yield the lines of a table of facts as CSV: the header, then one line for each fact."""
    yield _csv_line(TABLE_COLUMNS)
    for fact in facts:
        yield _csv_line(_csv_cells(fact))


def _csv_line(cells: Iterable[object]) -> str:
    written = StringIO()
    csv.writer(written).writerow(_harmless(cell) for cell in cells)
    return written.getvalue()


def _harmless(cell: object) -> object:
    """Put an apostrophe before a text that a spreadsheet would compute as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _csv_cells(fact: FactFound) -> tuple[object, ...]:
    state = "erased" if fact.erased_seq else "deleted" if fact.deleted_seq else "live"
    said = (fact.fact_id, state, fact.value, fact.question, fact.answer, fact.version)
    source, sample = fact.source, fact.sample
    place: tuple[object, ...] = (None,) * 6
    if source is not None:
        place = (source.corpus, source.external_id, source.title, source.uri, source.start, source.end)
    elif sample is not None:  # a release tells no offsets
        place = (sample.corpus, sample.sample_id, None, None, None, None)
    return (*said, *place, fact.created_seq, fact.deleted_seq, fact.review)
