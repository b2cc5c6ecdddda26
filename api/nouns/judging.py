"""Verdicts of people from a file, or on facts that are named: each says what version and review it is about.

A file is CSV with a header, or a JSON object a line, of fact_id and verdict ("accept", "reject" or "propose"), and of
the version and the review that were judged, where they are known. Nothing is done where a row cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from colmlm.api.nouns.corrections import RefusedRow, id_of, rows_of
from colmlm.kb.facts.reviews import OUTCOMES, REVIEWS, Review, ReviewVerdict, VerdictKind

if TYPE_CHECKING:
    from colmlm.kb.facts.records import FactRecord

COLUMNS = ("fact_id", "verdict", "version", "review")
ShowMany = Callable[[Sequence[int]], "list[FactRecord]"]


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """The verdicts of a file, and the rows that are refused."""

    verdicts: tuple[ReviewVerdict, ...]
    refused: tuple[RefusedRow, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    fact_id: int
    verdict: VerdictKind
    version: int | None
    review: Review | None


def judged(fact_ids: Sequence[int], verdict: VerdictKind, show_many: ShowMany) -> list[ReviewVerdict]:
    """Gives a verdict on each of these facts as it is now. Raises `FactNotFound`."""
    return _as_seen([_Row(fact_id, verdict, None, None) for fact_id in fact_ids], show_many)


def read(text: str, show_many: ShowMany) -> JudgedFile:
    """Reads the verdicts of a file; what they do not say they saw is the fact as it is now. Raises `FactNotFound`."""
    rows: dict[int, _Row] = {}
    refused: list[RefusedRow] = []
    for line, said in rows_of(text, COLUMNS):
        try:
            one = _row(said)
            if one.fact_id in rows:
                raise ValueError(f"fact {one.fact_id} has a verdict already")
            rows[one.fact_id] = one
        except ValueError as error:
            refused.append(RefusedRow(line, str(error)))
    return JudgedFile(() if refused else tuple(_as_seen(list(rows.values()), show_many)), tuple(refused))


def _as_seen(rows: list[_Row], show_many: ShowMany) -> list[ReviewVerdict]:
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


def _row(said: Any) -> _Row:
    """Reads a row. Raises `ValueError` with the cause where it cannot be used."""
    if isinstance(said, ValueError):
        raise said
    if not isinstance(said, dict):
        raise ValueError("it is not a JSON object")
    if unknown := sorted(said.keys() - set(COLUMNS)):
        raise ValueError(f"there is no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    verdict, review, version = said.get("verdict"), said.get("review"), said.get("version")
    if not isinstance(verdict, str) or verdict not in OUTCOMES:
        raise ValueError(f"its verdict is none of {', '.join(OUTCOMES)}")
    if review is not None and review not in REVIEWS:
        raise ValueError(f"its review is none of {', '.join(REVIEWS)}")
    try:
        version = None if version is None else id_of(version)
    except ValueError as error:
        raise ValueError("its version is no number, such as 1") from error
    return _Row(id_of(said.get("fact_id")), verdict, version, cast(Review | None, review))
