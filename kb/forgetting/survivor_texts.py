"""The texts of survivors, read when they are shown: what is stored about them holds none."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from colmlm.kb.answers.records import SaidFact
from colmlm.kb.answers.windows import SaidWindow, stretches
from colmlm.kb.facts.reading import fact_records
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.forgetting.records import SaidSurvivor, Survivor


def said(session: Session, survivors: Sequence[Survivor]) -> list[SaidSurvivor]:
    """Gives these survivors with their texts. One whose document or fact is not there any more is left out."""
    placed = [
        (one, (one.document_id, one.start, one.end))
        for one in survivors
        if one.document_id is not None and one.start is not None and one.end is not None
    ]
    read = stretches(session, [place for _, place in placed])
    windows = dict(zip([id(one) for one, _ in placed], read, strict=True))
    alone = [fact_id for one in survivors if one.document_id is None for fact_id in one.fact_ids]
    facts = fact_records(session, alone)
    shown = (
        _of_document(one, windows[id(one)])
        if one.document_id is not None
        else _of_fact(one, facts.get(one.fact_ids[0]))
        for one in survivors
    )
    return [one for one in shown if one is not None]


def _of_document(one: Survivor, window: SaidWindow | None) -> SaidSurvivor | None:
    if window is None:
        return None
    live = tuple(fact.said for fact in window.facts if fact.version is not None)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, window.shown(), window.source, live)


def _of_fact(one: Survivor, fact: FactRecord | None) -> SaidSurvivor | None:
    if fact is None:
        return None
    is_live = fact.deleted_seq is None
    live = (SaidFact(fact.fact_id, fact.version, fact.value),) if is_live else ()
    text = fact.value if is_live else MARK * len(fact.value)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, text, fact.source, live)
