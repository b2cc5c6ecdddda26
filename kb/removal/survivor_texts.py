"""The texts of survivors, read when they are shown: what is stored about them holds none."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from colmlm.kb.answers.records import SaidFact
from colmlm.kb.answers.windows import SaidWindow, read_stretches
from colmlm.kb.facts.reading import fact_records
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.removal.records import SaidSurvivor, Survivor


def said_survivors(session: Session, survivors: Sequence[Survivor]) -> list[SaidSurvivor]:
    """Gives these survivors with their texts, in their order."""
    placed = [
        (number, (one.document_id, one.start, one.end))
        for number, one in enumerate(survivors)
        if one.document_id is not None and one.start is not None and one.end is not None
    ]
    read = read_stretches(session, [place for _, place in placed])
    windows = dict(zip([number for number, _ in placed], read, strict=True))
    alone = [one.fact_ids[0] for number, one in enumerate(survivors) if number not in windows]
    facts = fact_records(session, alone)
    return [
        _of_document(one, windows[number]) if number in windows else _of_fact(one, facts[one.fact_ids[0]])
        for number, one in enumerate(survivors)
    ]


def _of_document(one: Survivor, window: SaidWindow) -> SaidSurvivor:
    live = tuple(fact.said for fact in window.facts if fact.version is not None)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, window.shown(), window.source, live)


def _of_fact(one: Survivor, fact: FactRecord) -> SaidSurvivor:
    is_live = fact.deleted_seq is None
    live = (SaidFact(fact.fact_id, fact.version, fact.value),) if is_live else ()
    text = fact.value if is_live else MARK * len(fact.value)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, text, None, live)
