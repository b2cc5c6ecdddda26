"""The sample of an adapting: documents and facts that are keyed truly, and pairs of keys that a map is fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, aliased

from colmlm.kb.keys import keysets, predicted, queues
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.keys.question_keys import asked_by_people
from colmlm.kb.keys.queues import KeyQueue
from colmlm.kb.tables import DocumentRow, FactKeyRow, FactRow

MOST_FITTED = 20_000  # facts that a map is fitted on


@dataclass(frozen=True, slots=True)
class KeyPairs:
    """Facts with true keys in both keysets: the old [n, d], the new [n, e], documents [n], and what each asks."""

    old_ND: Vectors
    new_NE: Vectors
    groups_N: list[int]
    questions_N: list[str | None]


@dataclass(frozen=True, slots=True)
class AdaptSample:
    """What a keyset is to have true keys of, so that the others can be predicted from another keyset's."""

    keyset_id: int
    from_keyset_id: int
    corpus: str | None
    documents: Sequence[int]
    facts: Sequence[int]

    @classmethod
    def drawn(
        cls, session: Session, keyset_id: int, from_keyset_id: int, corpus: str | None, size: int
    ) -> AdaptSample:
        """Draws documents with about `size` facts, and as many facts without one, by a hash of their ids.

        It draws the same again, and from all corpora where none is named.
        """
        documents = _documents(session, from_keyset_id, corpus, size)
        return cls(
            keyset_id,
            from_keyset_id,
            corpus,
            documents,
            [] if corpus is not None else _facts(session, from_keyset_id, size),
        )

    def queues(self, session: Session, kind: str) -> list[KeyQueue]:
        """Gives the queues of what has no true key of the kind yet."""
        if kind == "context":
            return [queues.documents_without_keys(self.keyset_id, self.corpus, self.documents)]
        asked_before = queues.has_key(self.from_keyset_id, FactKeyRow.kind == "question")
        of_documents = select(FactRow.id).where(FactRow.document_id == func.any(list(self.documents)))
        ids = {*session.scalars(of_documents.where(asked_before)), *asked_by_people(session)}
        return [
            queues.facts_without_keys(self.keyset_id, self.facts),
            queues.facts_without_question_keys(self.keyset_id, self.corpus, sorted(ids)),
        ]

    def pairs(self, session: Session, kind: str) -> KeyPairs:
        """Reads the true keys of the kind that both keysets have in the corpus, of the sample or not."""
        old, new = aliased(FactKeyRow), aliased(FactKeyRow)
        group = func.coalesce(FactRow.document_id, -FactRow.id)
        among = predicted.stretches(session, self.keyset_id)
        statement = (
            select(group, FactRow.question, old.key, new.key)
            .join(old, and_(old.fact_id == FactRow.id, old.keyset_id == self.from_keyset_id))
            .join(new, and_(new.fact_id == FactRow.id, new.keyset_id == self.keyset_id))
            .where(old.kind == kind, new.kind == kind, ~predicted.is_predicted(new.id, among))
            .where(queues.is_kept())
            .order_by(func.hashint8(group), FactRow.id)
            .limit(MOST_FITTED)
        )
        rows = session.execute(of_corpus(statement, self.corpus)).all()
        dims = [keysets.keyset_head(session, one).dim for one in (self.from_keyset_id, self.keyset_id)]
        return KeyPairs(
            keysets.decode([row[2] for row in rows], dims[0]),
            keysets.decode([row[3] for row in rows], dims[1]),
            [row[0] for row in rows],
            [row[1] for row in rows],
        )


def of_corpus(statement: Any, corpus: str | None) -> Any:
    """Limits a statement on facts to those of a corpus, where one is named."""
    if corpus is None:
        return statement
    return statement.join(DocumentRow, DocumentRow.id == FactRow.document_id).where(
        DocumentRow.corpus == corpus
    )


def _documents(session: Session, from_keyset_id: int, corpus: str | None, size: int) -> list[int]:
    keyed_before = queues.has_key(from_keyset_id, FactKeyRow.kind == "context")
    found = (
        select(FactRow.document_id, func.count())
        .where(FactRow.document_id.is_not(None), queues.is_kept(), keyed_before)
        .group_by(FactRow.document_id)
        .order_by(func.hashint8(FactRow.document_id), FactRow.document_id)
    )
    chosen: list[int] = []
    facts = 0
    for document_id, number in session.execute(of_corpus(found, corpus).limit(size)):
        if facts >= size:
            break
        chosen.append(document_id)
        facts += number
    return chosen


def _facts(session: Session, from_keyset_id: int, size: int) -> list[int]:
    keyed_before = queues.has_key(from_keyset_id, FactKeyRow.kind == "question")
    found = select(FactRow.id).where(FactRow.document_id.is_(None), queues.is_kept(), keyed_before)
    return list(session.scalars(found.order_by(func.hashint8(FactRow.id), FactRow.id).limit(size)))
