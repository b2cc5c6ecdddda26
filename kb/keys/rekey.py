"""Rekey: gives every live fact a key of a checkpoint. The facts without one are the queue, so it resumes by itself.

A fact of a document gets a key made from the text before it, and one made from its question where a person wrote that.
A keyset may also have keys made from all these facts' questions (`kb.keys.calibration`). A fact of a release has no
text here, so it is passed over until its document is ingested or somebody gives it a question. Then its adopted key
goes.

Each batch is one transaction: claim, encode, store the keys, and append a change of kind "key", from which every
index learns of them. Any number of workers may share a queue. A claim is an advisory lock on a document or a fact
that lasts as long as the transaction: it conflicts with no lock of an editor, needs no table, and ends when the keys
are committed or the worker dies. A worker passes over the claims of others; once nothing else is left it waits for
them, in case their worker dies.

Where there are processes elsewhere, each queue is first worked by them, in parts. What they leave is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, exists, func, or_, select, text
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.keys import keysets, predicted
from colmlm.kb.keys.calibration import asked_by_people, has_question_keys, seek_question_keys
from colmlm.kb.keys.keycopy import copy_keys, drop_approximate_keys, require_unit
from colmlm.kb.keys.predicted import Stretches, predicted_sql
from colmlm.kb.keys.records import CheckpointInfo, RekeyPart
from colmlm.kb.log import audit
from colmlm.kb.tables import (
    ADOPTED,
    IS_SAID,
    AttributionRow,
    DocumentRow,
    FactKeyRow,
    FactRow,
    FactVersionRow,
    TombstoneRow,
)

Vectors = npt.NDArray[np.float32]

FACTS_AT_ONCE = 256  # facts whose documents are encoded together; progress is told between them

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
        """Give for each document its keys [num_facts, d], from the token `<FACT>` of each fact, in order."""
        ...

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        """Give the keys [n, d], from the token `<FACT-q>` after each question."""
        ...

    def encode_contexts(self, texts: Sequence[str]) -> Vectors:
        """Give the queries [n, d] at a `<FACT>` after each text, as the decoder would make them there."""
        ...


# Has parts worked by processes elsewhere, in any order; gives how many keys were stored as it hears of them, and 0 now
# and then, so that whoever waits can end it.
Elsewhere = Callable[[Sequence[RekeyPart]], Generator[int, None, None]]


@dataclass(slots=True)
class KeyProgress:
    """The number of keys that a run has stored (`done`), and that it was to make when it began (`total`)."""

    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class RekeyRun:
    """One run of a rekey: its keyset, who asked for it, its corpus (None: all), and the kinds of key to make.

    With `replace` it also makes the true keys of facts whose keys were predicted, those that outputs ask for first.
    Long queues are first worked by processes `elsewhere`, where that is given.
    """

    sessions: sessionmaker[Session]
    encoder: Encoder
    keyset_id: int
    actor: str
    corpus: str | None
    batch: int
    on_facts: Callable[[int, int], None] | None
    kinds: Collection[str] = ("context",)
    replace: bool = False
    elsewhere: Elsewhere | None = None
    progress: KeyProgress = field(default_factory=KeyProgress, init=False)

    def run(self) -> None:
        """Make keys until the queues are empty, also for facts that are added meanwhile."""
        with self.sessions() as session:
            waiting = self._queues(session)
        self.work(waiting)

    def run_for(self, fact_ids: Sequence[int], most: int) -> bool:
        """Make the keys that these facts lack, and give True; make none and give False if they lack more than `most`.

        Other facts without keys are not looked for: among ten million facts that takes more than a minute.
        """
        with self.sessions.begin() as session:
            asked = "question" in self.kinds or seek_question_keys(session, self.keyset_id)
            waiting = queues_of_facts(session, self.keyset_id, fact_ids, with_questions=asked)
            if queue_length(session, waiting, keyset_id=self.keyset_id) > most:
                return False
        self.work(waiting)
        return True

    def work(self, waiting: Sequence[KeyQueue]) -> None:
        """Make keys until these queues are empty."""
        progress, analyzed = self.progress, 250
        with self.sessions() as session:
            progress.done, progress.total = (
                0,
                queue_length(session, waiting, keyset_id=self.keyset_id),
            )
        with closing(
            self._work_queues(waiting)
        ) as batches:  # at once, so that nobody goes on elsewhere after an error
            for stored in batches:
                progress.done += stored
                if progress.done >= 4 * analyzed:
                    analyzed = progress.done
                    with self.sessions.begin() as session:
                        keysets.analyze_keyset(session, self.keyset_id)
                self._report_progress(progress.done)
        if progress.done < progress.total:  # others made the rest, or it is wanted no more
            self._report_progress(progress.total)

    def _report_progress(self, done: int) -> None:
        if self.on_facts is not None:
            self.on_facts(done, max(done, self.progress.total))

    def work_part(self, part: RekeyPart) -> int:
        """Make the keys that a part of a queue lacks; give their number. Raises `InvalidValue` for another base."""
        with self.sessions() as session:
            if (found := audit.database_id(session)) != part.database_id:
                raise InvalidValue("database", f"{found} is not {part.database_id}. Set COLMLM_DATABASE_URL")
            waiting = [queue for queue in self._queues(session) if queue.name == part.queue]
        within = part.first, part.last
        return sum(stored for queue in waiting for stored in self._work(replace(queue, within=within)))

    def _work_queues(self, waiting: Sequence[KeyQueue]) -> Generator[int, None, None]:
        """Work the queues, one after the other; yield how many keys were stored."""
        for queue in waiting:
            if self.elsewhere is not None:
                yield from self._work_elsewhere(self.elsewhere, queue)
            yield from self._work(queue)

    def _work_elsewhere(self, elsewhere: Elsewhere, queue: KeyQueue) -> Generator[int, None, None]:
        """Have a queue worked elsewhere until at most one part is left or none stores a key; yield the keys stored."""
        stored = 1
        while stored and len(parts := self._parts(queue)) > 1:
            stored = 0
            with closing(elsewhere(parts)) as heard:
                for number in heard:
                    stored += number
                    yield number

    def _parts(self, queue: KeyQueue) -> list[RekeyPart]:
        with self.sessions() as session:
            base, found = audit.database_id(session), queue_parts(session, queue, self.batch)
        how = self.actor, self.corpus, self.batch, tuple(self.kinds), self.replace
        return [RekeyPart(base, self.keyset_id, queue.name, first, last, *how) for first, last in found]

    def _queues(self, session: Session) -> list[KeyQueue]:
        found = [documents_without_keys(self.keyset_id, self.corpus)]
        all_asked = "question" in self.kinds or has_question_keys(session, self.keyset_id)
        by_people = None if all_asked else asked_by_people(session)
        if by_people is None or by_people:
            found.append(facts_without_question_keys(self.keyset_id, self.corpus, by_people))
        if self.corpus is None:
            found.append(facts_without_keys(self.keyset_id))
        if self.replace and (among := predicted.predicted_stretches(session, self.keyset_id)):
            found.append(documents_with_predicted_keys(self.keyset_id, self.corpus, among))
            found.append(facts_with_predicted_keys(self.keyset_id, self.corpus, among))
        return found

    def _work(self, queue: KeyQueue) -> Iterator[int]:
        """Pass through the queue until a pass finds nothing to do; yield how many keys each batch stored."""
        while True:
            after, encoded, others = 0, False, None
            while (step := self._work_batch(queue, after)) is not None:
                after, others = step.last, others or step.others
                if step.stored is not None:
                    encoded = True
                    yield step.stored
            if not encoded:
                if others is None:
                    return
                self._wait(queue, others)

    def _work_batch(self, queue: KeyQueue, after: int) -> _BatchResult | None:
        """Key a batch that outputs ask for, or else the next one past id `after`; give None where the queue ends."""
        with self.sessions.begin() as session:
            session.execute(
                text("SET LOCAL idle_in_transaction_session_timeout = 0")
            )  # encoding may take longer than the timeout
            if stored := self._key_asked_for(session, queue):
                return _BatchResult(after, None, stored)
            window = session.scalars(queue.statement(after).limit(WINDOW * self.batch)).all()
            if not window:
                return None
            mine = self._claim(session, queue, window)
            last = mine[-1] if mine else window[-1]
            ours = set(mine)
            others = next((one for one in takewhile(last.__ge__, window) if one not in ours), None)
            return _BatchResult(last, others, self._key_claimed(session, queue, mine) if mine else None)

    def _key_asked_for(self, session: Session, queue: KeyQueue) -> int:
        """Make true keys of a batch that outputs ask for, wherever in the whole queue it is; give their number."""
        whole = replace(queue, within=None)
        asked = whole.most_used_ids(session, WINDOW * self.batch) if queue.replaced else []
        mine = self._claim(session, whole, asked) if asked else []
        return self._key_claimed(session, whole, mine) if mine else 0

    def _claim(self, session: Session, queue: KeyQueue, window: Sequence[int]) -> Sequence[int]:
        """Claim a batch of these ids, in their order, that no other worker has claimed; give the claimed ids."""
        return session.scalars(_CLAIM, self._claim_parameters(queue, window) | {"batch": self.batch}).all()

    def _key_claimed(self, session: Session, queue: KeyQueue, mine: Sequence[int]) -> int:
        """Make and store the keys of the claimed documents or facts, and give their number."""
        # Read again, since another worker may have keyed and released a candidate after it was read and before this
        # claim.
        ids = session.scalars(queue.statement(0, mine)).all()
        keys = self._of_documents(session, ids) if queue.by_document else self._of_questions(session, ids)
        return self._store(session, queue, keys) if keys else 0

    def _wait(self, queue: KeyQueue, claimed: int) -> None:
        """Wait until no worker has a claim on this id."""
        with self.sessions.begin() as session:
            session.execute(_AWAIT, self._claim_parameters(queue, [claimed]))

    def _claim_parameters(self, queue: KeyQueue, ids: Sequence[int]) -> dict[str, Any]:
        return {"scope": f"colmlm keysets fill {self.keyset_id} {queue.name}", "ids": list(ids)}

    def _of_documents(self, session: Session, ids: Sequence[int]) -> _Keys | None:
        documents = _annotated_documents(session, ids)
        if not documents:
            return None
        made: list[Vectors] = []
        for part in _parts([document for _, _, document in documents]):
            if made:
                self._report_progress(self.progress.done + sum(map(len, made)))
            made += self.encoder.encode_documents(part)
        if [len(keys) for keys in made] != [len(fact_ids) for _, fact_ids, _ in documents]:
            raise refusals.invalid_keys(self.encoder.checkpoint.checkpoint_id, "not one key for each fact")
        made_of = {
            fact_id: (document_id, span.start, span.question)
            for document_id, fact_ids, document in documents
            for fact_id, span in zip(fact_ids, document.facts, strict=True)
        }
        return _Keys(made_of, self._check_keys(np.concatenate(made)))

    def _of_questions(self, session: Session, ids: Sequence[int]) -> _Keys | None:
        rows = session.execute(select(*_MADE_OF).where(FactRow.id == func.any(list(ids)))).all()
        if not rows:
            return None
        made = self.encoder.encode_questions([row.question for row in rows])
        return _Keys({row[0]: tuple(row[1:]) for row in rows}, self._check_keys(made))

    def _check_keys(self, keys: Vectors) -> Vectors:
        checkpoint = self.encoder.checkpoint
        require_unit(keys, checkpoint.dim, checkpoint.checkpoint_id)
        return keys

    def _store(self, session: Session, queue: KeyQueue, keys: _Keys) -> int:
        """Insert the keys that are still wanted, in place of those they replace, and give their number.

        Under the log's lock it reads again what each key was made of. Since then a fact may have been deleted or moved,
        or got another question, so that its key would be wrong.
        """
        pending = audit.begin_change(session, self.actor, "rekey")
        statement = select(*_MADE_OF).where(FactRow.id == func.any(list(keys.made_of)), *queue.wanted)
        wanted = {row[0] for row in session.execute(statement) if tuple(row[1:]) == keys.made_of[row[0]]}
        fact_ids = sorted(wanted)
        if not fact_ids:
            return 0
        rows = {fact_id: n for n, fact_id in enumerate(keys.made_of)}
        vectors = keys.vectors[[rows[fact_id] for fact_id in fact_ids]]
        payload: dict[str, Any] = {
            "keyset": self.keyset_id,
            **drop_approximate_keys(session, self.keyset_id, fact_ids),
        }
        if queue.replaced:
            dropped = predicted.drop_predictions(
                session, self.keyset_id, queue.kind, fact_ids, queue.replaced
            )
            payload["dropped_keys"] = sorted([*payload.get("dropped_keys", ()), *dropped])
        first = copy_keys(session, self.keyset_id, queue.kind, fact_ids, vectors)
        payload["keys"] = [first, first + len(fact_ids) - 1]
        audit.append_change(session, pending, "key", fact_ids, payload=payload)
        return len(fact_ids)


@dataclass(frozen=True, slots=True)
class _BatchResult:
    """The result of a batch: `last` id examined, first of `others`' claims, keys `stored` (None: others had all)."""

    last: int
    others: int | None
    stored: int | None


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys [n, d] of facts, and what each was made of (`_MADE_OF`)."""

    made_of: dict[int, tuple[Any, ...]]
    vectors: Vectors


def _parts(documents: Sequence[AnnotatedDocument]) -> Iterator[list[AnnotatedDocument]]:
    """Yield the documents in parts of at least `FACTS_AT_ONCE` facts."""
    part: list[AnnotatedDocument] = []
    for document in documents:
        part.append(document)
        if sum(len(one.facts) for one in part) >= FACTS_AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def _annotated_documents(
    session: Session, document_ids: Sequence[int]
) -> list[tuple[int, list[int], AnnotatedDocument]]:
    """Give documents by id, with all their spans as they were ingested and the ids of their facts.

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


# The queues of what is to get keys: documents or facts, by what their keys lack.

MOST_PARTS = 10_000
_NEWEST = 5_000  # lookups of outputs that are looked at for what is asked


@dataclass(frozen=True, slots=True)
class KeyQueue:
    """A queue of documents or of single facts that are to get keys of a `kind`: those `wanted` by SQL conditions.

    `name` tells its claims from those of other queues. It may be limited to a corpus, and to these ids `only`.
    `replaced` has the ids of keys that the new ones replace. `within` has the first and the last id of a part of it.
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
        """The column of the queue's ids, which are of documents or of facts."""
        return FactRow.document_id if self.by_document else FactRow.id

    def statement(self, after: int, among: Sequence[int] | None = None) -> Select[Any]:
        """Select the ids in the queue past `after`, ascending, and only those in `among` where that is given."""
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

    def most_used_ids(self, session: Session, most: int) -> list[int]:
        """Give up to `most` ids in the queue whose facts the newest outputs have looked up, most used first."""
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
    """Give the queue of documents that have facts without a key that the checkpoint made."""
    wanted = (FactRow.span_start.is_not(None), *_unkeyed_conditions(keyset_id))
    return KeyQueue("context", "context", True, wanted, corpus, only)


def facts_without_keys(keyset_id: int, only: Sequence[int] | None = None) -> KeyQueue:
    """Give the queue of facts that have a question, no text before them, and no key that the checkpoint made."""
    wanted = (FactRow.span_start.is_(None), FactRow.question.is_not(None), *_unkeyed_conditions(keyset_id))
    return KeyQueue("question", "question", False, wanted, None, only)


def facts_without_question_keys(
    keyset_id: int, corpus: str | None, only: Sequence[int] | None = None
) -> KeyQueue:
    """Give the queue of documents' facts that have a context key and no question key.

    The context key is made first, since a fact that has only a question key would look keyed.
    """
    wanted = (
        *_asked_of_document_sql(),
        has_key_sql(keyset_id, FactKeyRow.kind == "context"),
        ~has_key_sql(keyset_id, FactKeyRow.kind == "question"),
    )
    return KeyQueue("question of a document", "question", False, wanted, corpus, only)


def documents_with_predicted_keys(keyset_id: int, corpus: str | None, among: Stretches) -> KeyQueue:
    """Give the queue of documents that have facts whose context key was predicted."""
    return KeyQueue(
        "predicted context",
        "context",
        True,
        _predicted_conditions(keyset_id, "context", among),
        corpus,
        None,
        among,
    )


def facts_with_predicted_keys(keyset_id: int, corpus: str | None, among: Stretches) -> KeyQueue:
    """Give the queue of facts whose question key was predicted."""
    return KeyQueue(
        "predicted question",
        "question",
        False,
        _predicted_conditions(keyset_id, "question", among),
        corpus,
        None,
        among,
    )


def queues_of_facts(
    session: Session, keyset_id: int, fact_ids: Sequence[int], *, with_questions: bool
) -> list[KeyQueue]:
    """Give the queues of the keys that these facts and their documents lack.

    They include question keys of all documents' facts `with_questions`, otherwise only of questions people wrote.
    """
    of_documents = select(FactRow.document_id).where(FactRow.id == func.any(list(fact_ids))).distinct()
    documents = [one for one in session.scalars(of_documents) if one is not None]
    found = [documents_without_keys(keyset_id, None, documents), facts_without_keys(keyset_id, fact_ids)]
    asked = fact_ids if with_questions else asked_by_people(session, fact_ids)
    return [*found, facts_without_question_keys(keyset_id, None, asked)] if asked else found


def queue_length(session: Session, queues: Iterable[KeyQueue], *, keyset_id: int) -> int:
    """Count the keys to be made in these queues, also question keys of facts that first need a context key."""
    total = 0
    for queue in queues:
        wanted = queue.wanted
        if queue.name == "question of a document":
            without = ~has_key_sql(keyset_id, FactKeyRow.kind == "question")
            wanted = (*_asked_of_document_sql(), without)
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


def live_or_tombstone_sql() -> Any:
    """Give a condition (SQL): the fact is live or a tombstone."""
    # `kb.facts.edits.is_kept` would read all versions for every batch while there are no statistics, as after
    # a first ingest.
    return or_(FactRow.deleted_seq.is_(None), exists().where(TombstoneRow.fact_id == FactRow.id))


def has_key_sql(keyset_id: int, *of: Any) -> Any:
    """Give a condition (SQL): the fact has a key in the keyset that meets the conditions `of`."""
    keyed = select(FactKeyRow.id).where(
        FactKeyRow.keyset_id == keyset_id, FactKeyRow.fact_id == FactRow.id, *of
    )
    # OFFSET keeps the planner from making a join, which without statistics reads all keys of a new partition for each
    # fact.
    return exists(keyed.correlate(FactRow).offset(0))


def _unkeyed_conditions(keyset_id: int) -> tuple[Any, ...]:
    """Give conditions (SQL): the fact is live or a tombstone, and has no key in the keyset but an adopted one."""
    return live_or_tombstone_sql(), ~has_key_sql(keyset_id, FactKeyRow.kind != ADOPTED)


def _predicted_conditions(keyset_id: int, kind: str, among: Stretches) -> tuple[Any, ...]:
    """Give conditions (SQL): the fact is live or a tombstone, and its key of this kind was predicted."""
    return live_or_tombstone_sql(), has_key_sql(
        keyset_id, FactKeyRow.kind == kind, predicted_sql(FactKeyRow.id, among)
    )


def _asked_of_document_sql() -> tuple[Any, ...]:
    return FactRow.document_id.is_not(None), FactRow.question.is_not(None), live_or_tombstone_sql()
