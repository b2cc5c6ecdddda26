"""Rekey: gives every live fact a key of a checkpoint. The facts without one are the queue, so it resumes by itself.

A fact of a document gets a key made from the text before it. A keyset may also have keys made from these facts'
questions: once it has one, every later rekey makes them for all its facts. A fact of a release has no text here, so it
is passed over until its document is ingested or somebody gives it a question. Then its adopted key goes.

Each batch is one transaction: claim, encode, store the keys, and append a change of kind "key", from which every
index learns of them. Any number of workers may share a queue. A claim is an advisory lock on a document or a fact
that lasts as long as the transaction: it conflicts with no lock of an editor, needs no table, and ends when the keys
are committed or the worker dies. A worker passes over the claims of others; once nothing else is left it waits for
them, in case their worker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, exists, func, or_, select, text
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.errors import InvalidKeys
from colmlm.kb.keys import keysets
from colmlm.kb.keys.keycopy import copy_keys, drop_adopted, require_unit
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.log import audit
from colmlm.kb.tables import ADOPTED, IS_SAID, DocumentRow, FactKeyRow, FactRow, FactVersionRow, TombstoneRow

Vectors = npt.NDArray[np.float32]

# A claim chooses from this many batches of candidates; where other workers hold them all, it reads the next ones.
WINDOW = 8

_MADE_OF = (FactRow.id, FactRow.document_id, FactRow.span_start, FactRow.question)

# The candidates come as a list: if one statement both searched and locked, it might lock rows that it does not return.
_CLAIM = text("""
SELECT id FROM unnest(CAST(:ids AS bigint[])) AS id
WHERE pg_try_advisory_xact_lock(hashtextextended(:scope || ' ' || id, 0)) LIMIT :batch
""")
_AWAIT = text("""
SELECT pg_advisory_xact_lock(hashtextextended(:scope || ' ' || id, 0)) FROM unnest(CAST(:ids AS bigint[])) AS id
""")


class Encoder(Protocol):
    """Turns texts into keys. Rows are unit vectors, float32, of width `checkpoint.dim`."""

    @property
    def checkpoint(self) -> CheckpointInfo: ...

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        """Gives for each document its keys [num_facts, d] at `<FACT>`, in the order of its facts."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        """Gives the keys [n, d] at `<FACT-q>`."""
        ...

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        """Gives the queries [n, d] at a `<FACT>` after each text, as the decoder would make them there."""
        ...


@dataclass(frozen=True, slots=True)
class RekeyRun:
    """One run of a rekey: its keyset, who asked for it, its corpus (None: all), and the kinds of key to make."""

    sessions: sessionmaker[Session]
    encoder: Encoder
    keyset_id: int
    actor: str
    corpus: str | None
    batch: int
    on_facts: Callable[[int, int], None] | None
    kinds: Collection[str] = ("context",)

    def run(self) -> None:
        """Makes keys until the queue is empty, also for facts that are added meanwhile."""
        with self.sessions() as session:
            with_questions = "question" in self.kinds or keysets.has_question_keys(session, self.keyset_id)
            total = _queue_length(session, self.keyset_id, self.corpus, with_questions=with_questions)
        done, analyzed = 0, 250
        for queue in self._queues(with_questions):
            for stored in self._work(queue):
                done += stored
                if done >= 4 * analyzed:
                    analyzed = done
                    with self.sessions.begin() as session:
                        keysets.analyze(session, self.keyset_id)
                if self.on_facts is not None:
                    self.on_facts(done, max(done, total))

    def _queues(self, with_questions: bool) -> Iterator[_Queue]:
        yield self._documents()
        if with_questions:
            yield self._asked()
        if self.corpus is None:
            yield self._questions()

    def _work(self, queue: _Queue) -> Iterator[int]:
        """Passes through the queue until a pass finds nothing to do; yields how many keys each batch stored."""
        while True:
            after, encoded, others = 0, False, None
            while (step := self._step(queue, after)) is not None:
                after, others = step.last, others or step.others
                if step.stored is not None:
                    encoded = True
                    yield step.stored
            if not encoded:
                if others is None:
                    return
                self._wait(queue, others)

    def _step(self, queue: _Queue, after: int) -> _Step | None:
        """Does one batch past id `after`; gives None where the queue ends."""
        with self.sessions.begin() as session:
            session.execute(
                text("SET LOCAL idle_in_transaction_session_timeout = 0")
            )  # encoding may take longer than the timeout
            window = session.scalars(queue.statement(after).limit(WINDOW * self.batch)).all()
            if not window:
                return None
            mine = session.scalars(_CLAIM, self._claims(queue, window) | {"batch": self.batch}).all()
            last = mine[-1] if mine else window[-1]
            ours = set(mine)
            others = next((one for one in takewhile(last.__ge__, window) if one not in ours), None)
            if not mine:
                return _Step(last, others, None)
            # Read again, since another worker may have keyed and released a candidate after it was read and before this
            # claim.
            keys = queue.encode(session, session.scalars(queue.statement(0, mine)).all())
            return _Step(last, others, self._store(session, keys) if keys else 0)

    def _wait(self, queue: _Queue, claimed: int) -> None:
        """Waits until no worker claims this id any more."""
        with self.sessions.begin() as session:
            session.execute(_AWAIT, self._claims(queue, [claimed]))

    def _claims(self, queue: _Queue, ids: Sequence[int]) -> dict[str, Any]:
        return {"scope": f"colmlm rekey {self.keyset_id} {queue.kind}", "ids": list(ids)}

    def _documents(self) -> _Queue:
        """Gives the queue of documents that have facts to key."""

        def statement(after: int, among: Sequence[int] | None = None) -> Select[Any]:
            wanted = (FactRow.span_start.is_not(None), *_unkeyed(self.keyset_id))
            found = select(FactRow.document_id).where(FactRow.document_id > after, *wanted)
            if self.corpus is not None:
                found = found.join(DocumentRow, DocumentRow.id == FactRow.document_id)
                found = found.where(DocumentRow.corpus == self.corpus)
            if among is not None:
                found = found.where(FactRow.document_id == func.any(list(among)))
            return found.distinct().order_by(FactRow.document_id)

        return _Queue("context", statement, self._encode_documents)

    def _questions(self) -> _Queue:
        """Gives the queue of facts to key that have a question and no text before them."""

        def statement(after: int, among: Sequence[int] | None = None) -> Select[Any]:
            asked = FactRow.span_start.is_(None), FactRow.question.is_not(None)
            found = select(FactRow.id).where(FactRow.id > after, *asked, *_unkeyed(self.keyset_id))
            if among is not None:
                found = found.where(FactRow.id == func.any(list(among)))
            return found.order_by(FactRow.id)

        return _Queue("question", statement, self._encode_questions)

    def _asked(self) -> _Queue:
        """Gives the queue of documents' facts whose question is to be keyed as well."""

        def statement(after: int, among: Sequence[int] | None = None) -> Select[Any]:
            found = select(FactRow.id).where(FactRow.id > after, *_unasked(self.keyset_id))
            if self.corpus is not None:
                found = found.join(DocumentRow, DocumentRow.id == FactRow.document_id)
                found = found.where(DocumentRow.corpus == self.corpus)
            if among is not None:
                found = found.where(FactRow.id == func.any(list(among)))
            return found.order_by(FactRow.id)

        return _Queue("question of a document", statement, self._encode_asked)

    def _encode_documents(self, session: Session, ids: Sequence[int]) -> _Keys | None:
        documents = _annotated(session, ids)
        if not documents:
            return None
        made = self.encoder.encode_documents([document for _, _, document in documents])
        if [len(keys) for keys in made] != [len(fact_ids) for _, fact_ids, _ in documents]:
            raise InvalidKeys(self.encoder.checkpoint.checkpoint_id, "not one key for each fact")
        made_of = {
            fact_id: (document_id, span.start, span.question)
            for document_id, fact_ids, document in documents
            for fact_id, span in zip(fact_ids, document.facts, strict=True)
        }
        return _Keys("context", made_of, self._checked(np.concatenate(made)), _unkeyed(self.keyset_id))

    def _encode_questions(self, session: Session, ids: Sequence[int]) -> _Keys | None:
        return self._of_questions(session, ids, _unkeyed(self.keyset_id))

    def _encode_asked(self, session: Session, ids: Sequence[int]) -> _Keys | None:
        return self._of_questions(session, ids, _unasked(self.keyset_id))

    def _of_questions(self, session: Session, ids: Sequence[int], wanted: tuple[Any, ...]) -> _Keys | None:
        rows = session.execute(select(*_MADE_OF).where(FactRow.id == func.any(list(ids)))).all()
        if not rows:
            return None
        made = self.encoder.encode_questions([row.question for row in rows])
        return _Keys("question", {row[0]: tuple(row[1:]) for row in rows}, self._checked(made), wanted)

    def _checked(self, keys: Vectors) -> Vectors:
        checkpoint = self.encoder.checkpoint
        require_unit(keys, checkpoint.dim, checkpoint.checkpoint_id)
        return keys

    def _store(self, session: Session, keys: _Keys) -> int:
        """Inserts the keys that are still wanted and gives their number.

        Under the log's lock it reads again what was read before encoding: meanwhile a fact may have been deleted, asked
        otherwise or moved, for which this key would be wrong.
        """
        pending = audit.begin(session, self.actor, "rekey")
        statement = select(*_MADE_OF).where(FactRow.id == func.any(list(keys.made_of)), *keys.wanted)
        wanted = {row[0] for row in session.execute(statement) if tuple(row[1:]) == keys.made_of[row[0]]}
        fact_ids = sorted(wanted)
        if not fact_ids:
            return 0
        rows = {fact_id: n for n, fact_id in enumerate(keys.made_of)}
        vectors = keys.vectors[[rows[fact_id] for fact_id in fact_ids]]
        renewed = drop_adopted(session, self.keyset_id, fact_ids)
        first = copy_keys(session, self.keyset_id, keys.kind, fact_ids, vectors)
        payload = {"keyset": self.keyset_id, "keys": [first, first + len(fact_ids) - 1], **renewed}
        audit.append(session, pending, "key", fact_ids, payload=payload)
        return len(fact_ids)


class _Statement(Protocol):
    """Selects the ids to be keyed, ascending, past `after`, and where it is given only those `among` these."""

    def __call__(self, after: int, among: Sequence[int] | None = None) -> Select[Any]: ...


@dataclass(frozen=True, slots=True)
class _Queue:
    """What is claimed and how it is encoded: documents, or single facts."""

    kind: str
    statement: _Statement
    encode: Callable[[Session, Sequence[int]], _Keys | None]


@dataclass(frozen=True, slots=True)
class _Step:
    """The last id examined, the first one another worker claimed, and the number of keys stored (None: all claimed)."""

    last: int
    others: int | None
    stored: int | None


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys [n, d] of facts, what each was made of (`_MADE_OF`), and conditions (SQL) they must still meet."""

    kind: str
    made_of: dict[int, tuple[Any, ...]]
    vectors: Vectors
    wanted: tuple[Any, ...]


def _unkeyed(keyset_id: int) -> tuple[Any, ...]:
    """Gives conditions (SQL): the fact is live or a tombstone, and has no key in the keyset, or an adopted one."""
    return _is_kept(), ~_has_key(keyset_id, FactKeyRow.kind != ADOPTED)


def _unasked(keyset_id: int) -> tuple[Any, ...]:
    """Gives conditions (SQL): a document's fact is live or a tombstone, and has a context key but no question key.

    The context key is made first, since a fact that has only a question key would look keyed.
    """
    return (
        FactRow.document_id.is_not(None),
        FactRow.question.is_not(None),
        _is_kept(),
        _has_key(keyset_id, FactKeyRow.kind == "context"),
        ~_has_key(keyset_id, FactKeyRow.kind == "question"),
    )


def _is_kept() -> Any:
    # `facts.is_kept` would read all versions for every batch while there are no statistics, as after a first ingest.
    return or_(FactRow.deleted_seq.is_(None), exists().where(TombstoneRow.fact_id == FactRow.id))


def _has_key(keyset_id: int, *of: Any) -> Any:
    keyed = select(FactKeyRow.id).where(
        FactKeyRow.keyset_id == keyset_id, FactKeyRow.fact_id == FactRow.id, *of
    )
    # OFFSET keeps the planner from making a join, which without statistics reads all keys of a new partition for each
    # fact.
    return exists(keyed.correlate(FactRow).offset(0))


def _queue_length(session: Session, keyset_id: int, corpus: str | None, *, with_questions: bool) -> int:
    """Counts the keys to be made, with the question keys of facts that are still to get their first key."""
    queues = [(or_(FactRow.span_start.is_not(None), FactRow.question.is_not(None)), *_unkeyed(keyset_id))]
    if with_questions:
        without = ~_has_key(keyset_id, FactKeyRow.kind == "question")
        queues.append((FactRow.document_id.is_not(None), FactRow.question.is_not(None), _is_kept(), without))
    total = 0
    for wanted in queues:
        statement = select(func.count()).select_from(FactRow).where(*wanted)
        if corpus is not None:
            statement = statement.join(DocumentRow, DocumentRow.id == FactRow.document_id)
            statement = statement.where(DocumentRow.corpus == corpus)
        total += session.scalar(statement) or 0
    return total


def _annotated(
    session: Session, document_ids: Sequence[int]
) -> list[tuple[int, list[int], AnnotatedDocument]]:
    """Gives documents by id, with all their spans as they were ingested and the ids of their facts.

    These include deleted facts, and values before correction: a key must not depend on which edits came before it.
    """
    statement = (
        select(FactRow, FactVersionRow.value)
        .join(FactVersionRow, IS_SAID)
        .where(FactRow.document_id == func.any(list(document_ids)))
        .order_by(FactRow.span_start, FactRow.id)
    )
    facts: dict[int | None, list[tuple[FactRow, str]]] = {}
    for fact, value in session.execute(statement):
        facts.setdefault(fact.document_id, []).append((fact, value))
    documents = (
        select(DocumentRow).where(DocumentRow.id == func.any(list(document_ids))).order_by(DocumentRow.id)
    )
    return [
        (document.id, [fact.id for fact, _ in facts[document.id]], _document(document, facts[document.id]))
        for document in session.scalars(documents)
    ]


def _document(document: DocumentRow, facts: list[tuple[FactRow, str]]) -> AnnotatedDocument:
    return AnnotatedDocument(
        document.external_id,
        document.text,
        tuple(_span(fact, value) for fact, value in facts),
        title=document.title,
        uri=document.uri,
        licence=document.licence,
        revision=document.revision,
    )


def _span(fact: FactRow, value: str) -> FactSpan:
    assert fact.span_start is not None and fact.span_end is not None, "a fact of a document has a span"
    return FactSpan(fact.span_start, fact.span_end, value, fact.question, fact.answer)
