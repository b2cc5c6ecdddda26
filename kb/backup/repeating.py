"""Repeats in a restored base what its newer log says: erasures, deletions, rejections, and limits to accepted facts.

Session first; nothing commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select, true
from sqlalchemy.orm import Session

from colmlm.kb.backup.newer_log import LaterLimit, NewerLog
from colmlm.kb.erasure.verbs import erase_facts
from colmlm.kb.facts import reading, verdicts
from colmlm.kb.facts.edits import delete_facts
from colmlm.kb.facts.reviews import ReviewVerdict
from colmlm.kb.review import limits
from colmlm.kb.tables import CorpusReviewRow, DocumentRow, FactRow, KeysetRow

_LATER = "in the log that went on after this backup"


@dataclass(frozen=True, slots=True)
class Repeated:
    """An erasure of `fact_ids`, change `seq` of the newer log, that the restore repeated as change `seq_here`."""

    seq: int
    at: str
    fact_ids: tuple[int, ...]
    seq_here: int


def erase(session: Session, newer: NewerLog, actor: str) -> Iterator[Repeated]:
    """Erases what was erased since; gives each erasure that changed anything here."""
    for erasure in newer.erasures:
        if known := _facts(session, erasure.fact_ids, true()):
            reason = f"erased by change {erasure.seq} of the log that went on after this backup"
            reach = erasure.mentions or "same-document"
            done = erase_facts(session, known, actor, reason, mentions=reach)
            if done.seq is not None:  # None where they were erased before and nothing says them
                yield Repeated(erasure.seq, erasure.at, done.fact_ids, done.seq)


def delete(session: Session, newer: NewerLog, deleted: Sequence[int], actor: str) -> None:
    """Deletes these facts, or rejects them, as they were since."""
    rejected = [fact_id for fact_id in deleted if fact_id in newer.rejected]
    if rejected:
        facts = reading.fact_records(session, rejected).values()
        judged = [ReviewVerdict(fact.fact_id, "reject", fact.version, fact.review) for fact in facts]
        verdicts.settle(session, judged, actor, f"rejected {_LATER}")
    for abstain in (False, True):
        left = [fact_id for fact_id in deleted if fact_id not in newer.rejected]
        if chosen := [fact_id for fact_id in left if (fact_id in newer.abstaining) is abstain]:
            delete_facts(session, chosen, actor, f"deleted {_LATER}", abstain=abstain)


def limit(session: Session, newer: NewerLog, actor: str) -> Iterator[LaterLimit]:
    """Lets only accepted facts answer where that was so since; gives those limits that were not in force here."""
    for later in newer.limits:
        if session.scalar(select(_lacks(later))):
            reason = f"limited by change {later.seq} of the log that went on after this backup"
            limits.limit(session, later.corpus, later.keyset, actor, reason, accepted_only=True)
            yield later


def live(session: Session, fact_ids: Iterable[int]) -> list[int]:
    """Gives those of these facts that are live in the restored base."""
    return _facts(session, fact_ids, FactRow.deleted_seq.is_(None))


def _lacks(later: LaterLimit) -> Any:
    """Gives a condition (SQL): the corpus or keyset is here, and not limited."""
    if later.keyset is not None:
        return exists().where(KeysetRow.id == later.keyset, ~KeysetRow.accepted_only)
    limited = exists().where(CorpusReviewRow.corpus == later.corpus, CorpusReviewRow.accepted_only)
    return exists().where(DocumentRow.corpus == later.corpus) & ~limited


def _facts(session: Session, fact_ids: Iterable[int], state: Any) -> list[int]:
    """Gives those of these facts that the restored base has in this state; it lacks facts newer than the backup."""
    statement = select(FactRow.id).where(FactRow.id == func.any(list(fact_ids)), state).order_by(FactRow.id)
    return list(session.scalars(statement))
