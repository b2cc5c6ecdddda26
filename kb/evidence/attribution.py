"""Attribution: traces stored outputs to facts, and facts to the outputs that used them.

Attributions name fact, version and change, so they stay valid after the fact was corrected or deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Unpack

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.records import Answer, AnsweredQuestion
from colmlm.kb.errors import refusals
from colmlm.kb.evidence import storing
from colmlm.kb.evidence.records import (
    FactTrace,
    Feedback,
    GenerationRecord,
    NewOutput,
    OutputTrace,
    QuotedStretch,
    Splice,
    Thumb,
    TracedSplice,
    Use,
    Version,
)
from colmlm.kb.evidence.storing import StoredOutput
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import reading
from colmlm.kb.facts.reading import CONTEXT_CHARACTERS, VersionOrigin
from colmlm.kb.facts.records import FactRecord, Source
from colmlm.kb.keys import predicted
from colmlm.kb.log import audit
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.lookup.options import KEY, READER, AnswerOptions, FilterOptions, FullAnswerOptions, filter_of
from colmlm.kb.misses.listing import groups_of
from colmlm.kb.principal import is_filtered
from colmlm.kb.store.store import Store, is_read_only
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import (
    AttributionRow,
    ChangeRow,
    DocumentRow,
    FeedbackRow,
    GenerationRow,
    copy_columns,
    thumbs,
)

SENTENCE_ENDS = (". ", "! ", "? ", "\n")


def trace_output(session: Session, generation_id: int) -> OutputTrace:
    """Trace every splice of a stored output to its fact and source, with later edits. Raises `GenerationNotFound`."""
    stored = session.get(GenerationRow, generation_id) if 0 < generation_id <= facts.MAX_ID else None
    if stored is None:
        raise refusals.generation_not_found(generation_id)
    statement = (
        select(AttributionRow)
        .where(AttributionRow.generation_id == generation_id)
        .order_by(AttributionRow.ordinal)
    )
    return _trace(
        session,
        stored,
        list(session.scalars(statement)),
        feedback=_feedback_of_output(session, generation_id),
        miss_groups=groups_of(session, generation_id),
    )


def _feedback_of_output(session: Session, generation_id: int) -> tuple[Feedback, ...]:
    """Give the feedback on an output, oldest first."""
    said = select(FeedbackRow).where(FeedbackRow.generation_id == generation_id).order_by(FeedbackRow.at)
    return tuple(map(storing.feedback_record, session.scalars(said)))


def trace_stored(session: Session, stored: StoredOutput) -> OutputTrace:
    """Trace an output that this transaction has stored, which has no feedback yet."""
    return _trace(session, stored.output, stored.lookups)


def _trace(
    session: Session,
    stored: GenerationRow,
    lookups: Sequence[AttributionRow],
    feedback: tuple[Feedback, ...] = (),
    miss_groups: tuple[int, ...] = (),
) -> OutputTrace:
    hits = [lookup.fact_id for lookup in lookups if lookup.fact_id is not None]
    used = reading.fact_records(session, hits) if hits else {}
    now = [(fact_id, fact.version) for fact_id, fact in used.items()]
    then = [(one.fact_id, one.fact_version) for one in lookups if one.fact_id is not None]
    origins = reading.version_origins(session, [*now, *then])
    edits, given = _edits_of(session, hits, stored.seq, origins.values()) if hits else ({}, {})
    predicted_of: Collection[int] = ()
    if stored.keyset_id is not None:
        predicted_of = predicted.predicted_as_of(session, stored.keyset_id, set(hits), stored.seq)
    splices = tuple(
        _trace_splice(stored, lookup, used, origins, edits, given, predicted_of) for lookup in lookups
    )
    source = _quoted_source(session, stored)
    return copy_columns(
        OutputTrace,
        stored,
        generation_id=stored.id,
        at=stored.at.astimezone(UTC),
        splices=splices,
        abstained=not stored.output,
        uncited=bool(stored.output) and source is None and all(splice.outcome != "hit" for splice in splices),
        quotes=source,
        feedback=feedback,
        miss_groups=miss_groups,
        corpora=tuple(stored.corpora),
        principal=audit.principal_of(stored.principal),
    )


def _quoted_source(session: Session, stored: GenerationRow) -> Source | None:
    """Give the document that an output quotes, with the quoted span, as a source; None if it quotes none."""
    if stored.document_id is None or stored.quoted_start is None or stored.quoted_end is None:
        return None
    about = session.get_one(DocumentRow, stored.document_id)
    return copy_columns(Source, about, document_id=about.id, start=stored.quoted_start, end=stored.quoted_end)


def _trace_splice(
    stored: GenerationRow,
    spliced: AttributionRow,
    used: Mapping[int, FactRecord],
    origins: Mapping[tuple[int, int], VersionOrigin],
    edits: Mapping[int, tuple[ChangeRecord, ...]],
    given: Mapping[int, ChangeRecord],
    predicted_of: Collection[int],
) -> TracedSplice:
    fact = used.get(spliced.fact_id) if spliced.fact_id is not None else None
    live = fact is not None and fact.deleted_seq is None
    then = origins.get((spliced.fact_id or 0, spliced.fact_version or 0))
    now = origins.get((fact.fact_id, fact.version)) if fact and live else None
    return copy_columns(
        TracedSplice,
        spliced,
        value=stored.output[spliced.output_start : spliced.output_end],
        version=spliced.fact_version,
        source=then.source if then else None,
        live=live,
        current_value=fact.value if fact and live else None,
        history=edits.get(spliced.fact_id, ()) if spliced.fact_id is not None else (),
        erased=fact is not None and fact.erased_seq is not None,
        review=fact.review if fact else None,
        sample=fact.sample if fact else None,
        key_predicted=spliced.fact_id in predicted_of,
        from_seq=then.from_seq if then else None,
        given_by=given.get(then.given_seq or 0) if then else None,
        current_seq=now.given_seq if now else None,
        document_says=then.document_says if then else None,
        sentence=_sentence(then) if then else None,
    )


def _edits_of(
    session: Session, fact_ids: Collection[int], after: int, origins: Iterable[VersionOrigin]
) -> tuple[dict[int, tuple[ChangeRecord, ...]], dict[int, ChangeRecord]]:
    """Give the edits after change `after` by fact id, and by number, too, the changes that gave `origins` their values.

    Kinds in `MAINTENANCE` are no edits. A caller limited to some corpora gets none: a change may be of others too.
    """
    if is_filtered():
        return {}, {}
    touches = and_(ChangeRow.seq > after, ChangeRow.fact_ids.overlap(sorted(set(fact_ids))))
    given = ChangeRow.seq.in_({one.given_seq for one in origins if one.given_seq is not None})
    changes = _edits_touching(session, or_(touches, given))
    since = [change for change in changes if change.seq > after]
    edits = {fact_id: tuple(change for change in since if fact_id in change.fact_ids) for fact_id in fact_ids}
    return edits, {change.seq: change for change in changes}


def _edits_touching(session: Session, condition: ColumnElement[bool]) -> tuple[ChangeRecord, ...]:
    statement = select(ChangeRow).where(condition, ChangeRow.kind.not_in(audit.MAINTENANCE))
    return tuple(audit.change_record(change) for change in session.scalars(statement.order_by(ChangeRow.seq)))


def trace_fact(session: Session, fact_id: int) -> FactTrace:
    """Give a fact with its source sentence, its values over time, its edits, and every stored output that used it."""
    fact = reading.get_fact(session, fact_id)
    touches = or_(ChangeRow.fact_ids.contains([fact_id]), ChangeRow.seq == fact.created_seq)
    uses = session.execute(
        select(AttributionRow, GenerationRow.at)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(AttributionRow.fact_id == fact_id)
        .order_by(AttributionRow.generation_id, AttributionRow.ordinal)
    )
    origins = reading.version_origins(session, [(fact_id, None)])
    return FactTrace(
        fact=fact,
        context=_sentence(origins[fact_id, fact.version]),
        versions=tuple(map(_version, origins.values())),
        history=_edits_touching(session, touches),
        uses=tuple(_use(used, at) for used, at in uses),
    )


def _version(v: VersionOrigin) -> Version:
    start, end = (v.source.start, v.source.end) if v.source else (None, None)
    return Version(
        v.version, v.value, v.from_seq, v.to_seq, v.question, v.document_id, start, end, v.given_seq, v.document_says
    )  # fmt: skip


def _use(used: AttributionRow, at: datetime) -> Use:
    assert used.fact_version is not None, "a hit without a version cannot be stored"
    return Use(used.generation_id, used.fact_version, used.output_start, used.output_end, at.astimezone(UTC))


def _sentence(origin: VersionOrigin) -> str | None:
    """Give the sentence around a version's span in its document; None for a fact without a document."""
    if origin.around is None or origin.source is None:
        return None
    return sentence_around(
        origin.around, origin.start, origin.start + origin.source.end - origin.source.start
    )


def sentence_around(text: str, start: int, end: int) -> str:
    """Give the sentence of a text around a span, with at most 300 characters on either side."""
    first = max(0, start - CONTEXT_CHARACTERS)
    text, start, end = text[first : end + CONTEXT_CHARACTERS], start - first, end - first
    begins = [at + len(mark) for mark in SENTENCE_ENDS if (at := text.rfind(mark, 0, start)) >= 0]
    stops = [at for mark in SENTENCE_ENDS if (at := text.find(mark, end)) >= 0]
    return text[max(begins, default=0) : min(stops) + 1 if stops else len(text)].strip()


def list_generations(
    session: Session, after: int, limit: int, thumb: Thumb | None = None, principal: str | None = None
) -> list[GenerationRecord]:
    """List stored outputs older than output `after` (0: all), newest first.

    With `thumb` only outputs with such feedback; with `principal`, a token's name or a user's, only those it asked for.
    """
    num_splices = func.count(AttributionRow.generation_id)
    num_hits = num_splices.filter(AttributionRow.outcome == "hit")
    statement = (
        select(GenerationRow, num_splices.label("num_splices"), num_hits.label("num_hits"))
        .outerjoin(AttributionRow, AttributionRow.generation_id == GenerationRow.id)
        .group_by(GenerationRow.id)
        .order_by(GenerationRow.id.desc())
        .limit(limit)
    )
    if after:
        statement = statement.where(GenerationRow.id < after)
    if thumb is not None:
        given = select(FeedbackRow.generation_id).where(FeedbackRow.thumb == thumb)
        statement = statement.where(GenerationRow.id.in_(given))
    if principal is not None:
        statement = statement.where(GenerationRow.principal["name"].astext == principal)
    rows = session.execute(statement).all()
    up, down = (_thumbs(session, [row[0].id for row in rows], one) for one in thumbs)
    return [
        copy_columns(
            GenerationRecord,
            stored,
            generation_id=stored.id,
            at=stored.at.astimezone(UTC),
            num_splices=splices,
            num_hits=hits,
            abstained=not stored.output,
            uncited=bool(stored.output) and stored.document_id is None and not hits,
            up=up.get(stored.id, 0),
            down=down.get(stored.id, 0),
            principal=audit.principal_of(stored.principal),
        )
        for stored, splices, hits in rows
    ]


def _thumbs(session: Session, generation_ids: Sequence[int], thumb: str) -> dict[int, int]:
    """Count the feedback with this thumb, by output; outputs without any are left out."""
    given = select(FeedbackRow.generation_id, func.count().label("number")).where(
        FeedbackRow.generation_id == func.any(list(generation_ids)), FeedbackRow.thumb == thumb
    )
    rows = session.execute(given.group_by(FeedbackRow.generation_id))
    return {row.generation_id: row.number for row in rows}


# Stores what is said to questions like what decoders say, so that it is traced, redacted and withheld like
# that.


@dataclass(frozen=True, slots=True)
class StoredAnswers:
    """Answers questions and stores each answer, also an empty one, unless the settings keep none.

    If the role of the database may only read, it answers and stores nothing. Threads may share it.
    """

    store: Store
    answering: Answering

    @property
    def reader(self) -> JudgedReader:
        return self.answering.reader

    def answer(self, question: str, mode: str = "read", **options: Unpack[AnswerOptions]) -> Answer:
        """Answer as `Answering.ask`, or in the mode "paper" as `Answering.nearest_fact`, and store the answer.

        An answer with a text that was erased meanwhile is withheld. Raises `InvalidValue` for a question that cannot be
        stored.
        """
        audit.check_text("question", question)
        asked = self.answering.answer_in_mode(question, mode, **options)
        if not self.store.settings.keep_answers:
            return asked.answer
        return self._store_output(
            asked, output_of_answer(asked, mode, **filter_of(FullAnswerOptions(**options)))
        )

    @retry_on_contention
    def _store_output(self, asked: AnsweredQuestion, output: NewOutput) -> Answer:
        with self.store.sessions.begin() as session:
            if is_read_only(session):
                return asked.answer
            stored = storing.record_output(session, output).output
        said = asked.answer if stored.output == output.output else _withheld(asked.answer)
        return replace(said, generation_id=stored.id)


def _withheld(answer: Answer) -> Answer:
    return replace(answer, answer=None, facts=(), source=None, withheld=True, nearest=())


def output_of_answer(asked: AnsweredQuestion, mode: str, **kept: Unpack[FilterOptions]) -> NewOutput:
    """Make the output to store of an answer: a quotation of its document, or a lookup that found nothing."""
    answer, query = asked.answer, asked.query
    # In the mode "paper" it is the value of a fact, whatever its document says.
    source = answer.source if mode == "read" else None
    return NewOutput(
        prompt=answer.question,
        output=answer.answer or "",
        checkpoint_id=query.checkpoint_id if query else "",
        mode=mode,
        seq=answer.seq,
        splices=_splices(asked),
        ranking=READER if mode == "read" else KEY,
        **kept,
        quotes=QuotedStretch(source.document_id, source.start, source.end) if source else None,
    )


def _splices(asked: AnsweredQuestion) -> tuple[Splice, ...]:
    answer, query = asked.answer, asked.query.query if asked.query else None
    if answer.abstained:
        outcome = "abstained" if answer.withheld else "no_match"
        return (Splice(0, 0, outcome, score=answer.score, query=query),)
    values = {fact.fact_id: fact.value for fact in answer.facts}
    return tuple(
        Splice(
            output_start=part.start,
            output_end=part.end,
            outcome="hit",
            fact_id=part.fact_id,
            version=part.version,
            score=answer.score,
            query=query,
            part_start=None if is_whole else part.part_start,
            part_end=None if is_whole else part.part_end,
            quoted_start=part.quoted_start,
            quoted_end=part.quoted_end,
        )
        for part in asked.parts
        for is_whole in ((part.part_start, part.part_end) == (0, len(values[part.fact_id])),)
    )
