"""Rekey: give every live fact a key of a checkpoint. Facts without one are the queue, so it resumes by itself.

Each batch is one transaction: its keys, and a change of kind "key" that tells every index to fetch them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, exists, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from kb import audit
from kb.corpus import AnnotatedDocument, FactSpan
from kb.errors import InvalidKeys
from kb.facts import is_kept
from kb.keysets import encode
from kb.records import CheckpointInfo
from kb.tables import Document, Fact, FactKey, FactVersion

Vectors = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Who turns texts into keys. Rows are unit vectors, float32, of width `checkpoint.dim`."""

    @property
    def checkpoint(self) -> CheckpointInfo: ...

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        """For each document [num_facts, d]: the keys at `<FACT>`, in the order of its facts."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        """[n, d]: the keys at `<FACT-q>`."""
        ...


@dataclass(frozen=True, slots=True)
class Rekey:
    """One run: which keyset, by whom, over which corpus (None: everything)."""

    sessions: sessionmaker[Session]
    encoder: Encoder
    keyset_id: int
    actor: str
    corpus: str | None
    batch: int
    on_facts: Callable[[int, int], None] | None

    def run(self) -> None:
        """Key until the queue is empty. Facts that appear meanwhile are keyed too."""
        with self.sessions() as session:
            total, done = _queue_length(session, self.keyset_id, self.corpus), 0
        for next_batch in (self._documents, self._questions):
            after = 0
            while (batch := next_batch(after)) is not None:
                after, keys = batch
                done += self._store(keys)
                if self.on_facts is not None:
                    self.on_facts(done, max(done, total))

    def _documents(self, after: int) -> tuple[int, _Keys] | None:
        """The keys of the next documents past id `after` that have work."""
        with self.sessions() as session:
            statement = select(Fact.document_id).where(Fact.document_id > after, *_unkeyed(self.keyset_id))
            if self.corpus is not None:
                statement = statement.join(Document, Document.id == Fact.document_id)
                statement = statement.where(Document.corpus == self.corpus)
            ids = session.scalars(statement.distinct().order_by(Fact.document_id).limit(self.batch)).all()
            documents = _annotated(session, [document_id for document_id in ids if document_id is not None])
        if not documents:
            return None
        made = self.encoder.encode_documents([document for _, _, document in documents])
        if [len(keys) for keys in made] != [len(fact_ids) for _, fact_ids, _ in documents]:
            raise InvalidKeys(self.encoder.checkpoint.checkpoint_id, "not one key for each fact")
        homes: dict[int, int | None] = {
            fact_id: document_id for document_id, fact_ids, _ in documents for fact_id in fact_ids
        }
        return documents[-1][0], _Keys("context", homes, self._checked(np.concatenate(made)))

    def _questions(self, after: int) -> tuple[int, _Keys] | None:
        """The keys of the next facts past id `after` that have no document."""
        if self.corpus is not None:
            return None
        statement = select(Fact.id, Fact.question).where(
            Fact.id > after, Fact.document_id.is_(None), *_unkeyed(self.keyset_id)
        )
        with self.sessions() as session:
            rows = session.execute(statement.order_by(Fact.id).limit(self.batch)).all()
        if not rows:
            return None
        made = self.encoder.encode_questions([row.question for row in rows])
        return rows[-1].id, _Keys("question", {row.id: None for row in rows}, self._checked(made))

    def _checked(self, keys: Vectors) -> Vectors:
        checkpoint = self.encoder.checkpoint
        if keys.ndim != 2 or keys.shape[1] != checkpoint.dim:
            raise InvalidKeys(checkpoint.checkpoint_id, f"shape {keys.shape}, not (n, {checkpoint.dim})")
        # Written so that NaN fails too.
        if not (np.abs(np.linalg.norm(keys, axis=1) - 1) < 0.01).all():
            raise InvalidKeys(checkpoint.checkpoint_id, "they are not unit vectors")
        return keys

    def _store(self, keys: _Keys) -> int:
        """Commit the keys that are still wanted; how many those were.

        Under the log's lock, what was read before encoding is read again: a fact may have been deleted, keyed by
        another run, or moved to another text meanwhile, for which this key would be wrong.
        """
        with self.sessions.begin() as session:
            pending = audit.begin(session, self.actor, "rekey")
            statement = select(Fact.id, Fact.document_id).where(
                Fact.id == func.any(list(keys.homes)), *_unkeyed(self.keyset_id)
            )
            wanted = {row.id for row in session.execute(statement) if row.document_id == keys.homes[row.id]}
            fact_ids = sorted(wanted)
            if not fact_ids:
                return 0
            rows = dict(zip(keys.homes, encode(keys.vectors), strict=True))
            self._insert(session, keys.kind, fact_ids, [rows[fact_id] for fact_id in fact_ids])
            audit.append(session, pending, "key", fact_ids, payload={"keyset": self.keyset_id})
            return len(fact_ids)

    def _insert(self, session: Session, kind: str, fact_ids: list[int], stored: list[bytes]) -> None:
        session.execute(
            text(
                "INSERT INTO fact_key (keyset_id, id, fact_id, kind, key)"
                " SELECT :keyset_id, nextval('fact_key_id_seq'), fact_id, :kind, key"
                " FROM unnest(CAST(:fact_ids AS bigint[]), CAST(:keys AS bytea[])) AS new (fact_id, key)"
            ),
            {"keyset_id": self.keyset_id, "kind": kind, "fact_ids": fact_ids, "keys": stored},
        )


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys [n, d] of facts, and the document each fact was in when it was encoded."""

    kind: str
    homes: dict[int, int | None]
    vectors: Vectors


def _unkeyed(keyset_id: int) -> tuple[Any, ...]:
    """SQL: the fact is live or a tombstone, and has no key in the keyset."""
    keyed = exists().where(FactKey.keyset_id == keyset_id, FactKey.fact_id == Fact.id)
    return is_kept(Fact.id), ~keyed


def _queue_length(session: Session, keyset_id: int, corpus: str | None) -> int:
    statement = select(func.count()).select_from(Fact).where(*_unkeyed(keyset_id))
    if corpus is not None:
        statement = statement.join(Document, Document.id == Fact.document_id).where(Document.corpus == corpus)
    return session.scalar(statement) or 0


def _annotated(
    session: Session, document_ids: Sequence[int]
) -> list[tuple[int, list[int], AnnotatedDocument]]:
    """Documents by id, with all their spans as they were ingested and the fact ids of these.

    Deleted facts and corrected values too: a key must not depend on which edits came before it.
    """
    statement = (
        select(Fact, FactVersion.value)
        .join(FactVersion, and_(FactVersion.fact_id == Fact.id, FactVersion.version == 1))
        .where(Fact.document_id == func.any(list(document_ids)))
        .order_by(Fact.span_start, Fact.id)
    )
    facts: dict[int | None, list[tuple[Fact, str]]] = {}
    for fact, value in session.execute(statement):
        facts.setdefault(fact.document_id, []).append((fact, value))
    documents = select(Document).where(Document.id == func.any(list(document_ids))).order_by(Document.id)
    return [
        (document.id, [fact.id for fact, _ in facts[document.id]], _document(document, facts[document.id]))
        for document in session.scalars(documents)
    ]


def _document(document: Document, facts: list[tuple[Fact, str]]) -> AnnotatedDocument:
    return AnnotatedDocument(
        document.external_id,
        document.text,
        tuple(_span(fact, value) for fact, value in facts),
        title=document.title,
        uri=document.uri,
        licence=document.licence,
        revision=document.revision,
    )


def _span(fact: Fact, value: str) -> FactSpan:
    assert fact.span_start is not None and fact.span_end is not None, "a fact of a document has a span"
    return FactSpan(fact.span_start, fact.span_end, value, fact.question, fact.answer)
