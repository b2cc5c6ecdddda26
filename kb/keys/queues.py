"""Queues of a rekey: facts that a keyset has no key of, or a predicted one, by what their keys are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, exists, func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.keys.calibration import asked_by_people
from colmlm.kb.keys.predicted import Stretches, is_predicted
from colmlm.kb.tables import ADOPTED, AttributionRow, DocumentRow, FactKeyRow, FactRow, TombstoneRow

MOST_PARTS = 10_000
_NEWEST = 5_000  # lookups of outputs that are looked at for what is asked


@dataclass(frozen=True, slots=True)
class KeyQueue:
    """The documents, or single facts, that are to get keys of a `kind`: where facts are `wanted` (SQL conditions).

    `name` tells its claims from those of other queues. It may be limited to a corpus, and to these ids `only`.
    `replaced` are the keys that make way for the new ones. `within` are the first and the last id of a part of it.
    """

    name: str
    kind: str
    by_document: bool
    wanted: tuple[Any, ...]
    corpus: str | None = None
    only: Sequence[int] | None = None
    replaced: Stretches = ()
    within: tuple[int, int] | None = None

    @property
    def column(self) -> Any:
        """What its ids are of."""
        return FactRow.document_id if self.by_document else FactRow.id

    def statement(self, after: int, among: Sequence[int] | None = None) -> Select[Any]:
        """Select the ids to be keyed, ascending, past `after`, and where it is given only those `among` these."""
        column = self.column
        found = select(column).where(column > after, *self.wanted)
        if self.corpus is not None:
            found = found.join(DocumentRow, DocumentRow.id == FactRow.document_id)
            found = found.where(DocumentRow.corpus == self.corpus)
        if self.within is not None:
            found = found.where(column.between(*self.within))
        for ids in (self.only, among):
            if ids is not None:
                found = found.where(column == func.any(list(ids)))
        return (found.distinct() if self.by_document else found).order_by(column)

    def asked_for(self, session: Session, most: int) -> list[int]:
        """Give the ids to be keyed whose facts the newest outputs have looked up, most often first."""
        newest = select(AttributionRow.fact_id).order_by(
            AttributionRow.generation_id.desc(), AttributionRow.ordinal.desc()
        )
        uses = Counter(session.scalars(newest.limit(_NEWEST)))
        if self.by_document:
            uses = _by_document(session, uses)
        # Their ids are given one by one, since joined with them the server would read all that is to be keyed.
        wanted = session.scalars(self.statement(0, [one for one in uses if one is not None]))
        return sorted(wanted, key=lambda one: (-uses[one], one))[:most]


def queue_parts(session: Session, queue: KeyQueue, batch: int) -> list[tuple[int, int]]:
    """Give the first and the last id of each part of a queue: of one batch, or of more where the queue is long."""
    ids = queue.statement(0).subquery()
    (one,) = ids.c
    size = max(batch, -(-(session.scalar(select(func.count()).select_from(ids)) or 0) // MOST_PARTS))
    place = ((func.row_number().over(order_by=one) - 1) // size).label("place")
    placed = select(one.label("id"), place).subquery()
    statement = select(func.min(placed.c.id), func.max(placed.c.id)).group_by(placed.c.place)
    return [(first, last) for first, last in session.execute(statement.order_by(placed.c.place))]


def _by_document(session: Session, uses: Counter[int | None]) -> Counter[int | None]:
    of_documents: Counter[int | None] = Counter()
    ids = [fact_id for fact_id in uses if fact_id is not None]
    places = select(FactRow.id, FactRow.document_id).where(FactRow.id == func.any(ids))
    for fact_id, document_id in session.execute(places):
        of_documents[document_id] += uses[fact_id]
    return of_documents


def documents_without_keys(keyset_id: int, corpus: str | None, only: Sequence[int] | None = None) -> KeyQueue:
    """Give the queue of documents that have facts without a key of the checkpoint's own."""
    wanted = (FactRow.span_start.is_not(None), *_unkeyed(keyset_id))
    return KeyQueue("context", "context", True, wanted, corpus, only)


def facts_without_keys(keyset_id: int, only: Sequence[int] | None = None) -> KeyQueue:
    """Give the queue of facts that have a question and no text before them, and no key of the checkpoint's own."""
    wanted = (FactRow.span_start.is_(None), FactRow.question.is_not(None), *_unkeyed(keyset_id))
    return KeyQueue("question", "question", False, wanted, None, only)


def facts_without_question_keys(
    keyset_id: int, corpus: str | None, only: Sequence[int] | None = None
) -> KeyQueue:
    """Give the queue of documents' facts that have a context key and no question key.

    The context key is made first, since a fact that has only a question key would look keyed.
    """
    wanted = (
        *_of_document_and_asked(),
        has_key(keyset_id, FactKeyRow.kind == "context"),
        ~has_key(keyset_id, FactKeyRow.kind == "question"),
    )
    return KeyQueue("question of a document", "question", False, wanted, corpus, only)


def documents_with_predicted_keys(keyset_id: int, corpus: str | None, among: Stretches) -> KeyQueue:
    """Give the queue of documents that have facts whose context key was predicted."""
    return KeyQueue(
        "predicted context", "context", True, _predicted(keyset_id, "context", among), corpus, None, among
    )


def facts_with_predicted_keys(keyset_id: int, corpus: str | None, among: Stretches) -> KeyQueue:
    """Give the queue of facts whose question key was predicted."""
    return KeyQueue(
        "predicted question", "question", False, _predicted(keyset_id, "question", among), corpus, None, among
    )


def of_facts(
    session: Session, keyset_id: int, fact_ids: Sequence[int], *, with_questions: bool
) -> list[KeyQueue]:
    """Give the queues of what these facts and their documents lack.

    Question keys of documents' facts are among it: all of them `with_questions`, else those whose questions people
    wrote.
    """
    of_documents = select(FactRow.document_id).where(FactRow.id == func.any(list(fact_ids))).distinct()
    documents = [one for one in session.scalars(of_documents) if one is not None]
    found = [documents_without_keys(keyset_id, None, documents), facts_without_keys(keyset_id, fact_ids)]
    asked = fact_ids if with_questions else asked_by_people(session, fact_ids)
    return [*found, facts_without_question_keys(keyset_id, None, asked)] if asked else found


def queue_length(session: Session, queues: Iterable[KeyQueue], *, keyset_id: int) -> int:
    """Count the keys to be made in these queues, with the question keys of facts that are still to get their first."""
    total = 0
    for queue in queues:
        wanted = queue.wanted
        if queue.name == "question of a document":
            without = ~has_key(keyset_id, FactKeyRow.kind == "question")
            wanted = (*_of_document_and_asked(), without)
        statement = select(func.count()).select_from(FactRow).where(*wanted)
        if queue.by_document:
            statement = statement.where(FactRow.document_id.is_not(None))
        if queue.only is not None:
            statement = statement.where(queue.column == func.any(list(queue.only)))
        if queue.corpus is not None:
            statement = statement.join(DocumentRow, DocumentRow.id == FactRow.document_id)
            statement = statement.where(DocumentRow.corpus == queue.corpus)
        total += session.scalar(statement) or 0
    return total


def is_kept() -> Any:
    """Give a condition (SQL): the fact is live or a tombstone."""
    # `facts.is_kept` would read all versions for every batch while there are no statistics, as after a first ingest.
    return or_(FactRow.deleted_seq.is_(None), exists().where(TombstoneRow.fact_id == FactRow.id))


def has_key(keyset_id: int, *of: Any) -> Any:
    """Give a condition (SQL): the fact has a key, such a one, in the keyset."""
    keyed = select(FactKeyRow.id).where(
        FactKeyRow.keyset_id == keyset_id, FactKeyRow.fact_id == FactRow.id, *of
    )
    # OFFSET keeps the planner from making a join, which without statistics reads all keys of a new partition for each
    # fact.
    return exists(keyed.correlate(FactRow).offset(0))


def _unkeyed(keyset_id: int) -> tuple[Any, ...]:
    """Give conditions (SQL): the fact is live or a tombstone, and have no key in the keyset, or an adopted one."""
    return is_kept(), ~has_key(keyset_id, FactKeyRow.kind != ADOPTED)


def _predicted(keyset_id: int, kind: str, among: Stretches) -> tuple[Any, ...]:
    """Give conditions (SQL): the fact is live or a tombstone, and its key of this kind was predicted."""
    return is_kept(), has_key(keyset_id, FactKeyRow.kind == kind, is_predicted(FactKeyRow.id, among))


def _of_document_and_asked() -> tuple[Any, ...]:
    return FactRow.document_id.is_not(None), FactRow.question.is_not(None), is_kept()
