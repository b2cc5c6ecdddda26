"""Quotations: finds and redacts stored texts outside the facts that repeat what an erased fact said.

The functions take the session first and never commit. Each column of the tables declares what an erasure does with it
(`kb.tables.declarative`); what is redacted here are the columns with content of these tables:

- generation: where the fact was spliced, wherever else they say it, and where the document that an output quotes is
  redacted (`kb.facts.redaction`). Its attributions lose their queries: of an answer with any of its splices, with a
  redacted prompt, and where nothing was found in a redacted output;
- forget_run: in a run that names the fact also a selector's text or question that is part of what the fact said, and
  what a plan or verification tells of other facts that say the same;
- job: of a job that is not over only the reason among its arguments, as the others are its task;
- erasure_request, question, feedback;
- question_outcome: the value also where it is a part of what an erased fact said.

Elsewhere `kb.facts.redaction` redacts documents and `kb.removal.erase` the facts, and drops their past and the bodies
of kept answers. The words of sentences go with the statement that redacts their text. The log cannot be altered: in the
change of an erasure the reason and on whose behalf it was made are redacted before they are stored.

A writer of one of these tables holds erasures off (`kb.facts.suppression`) and, with the functions here, redacts
what was erased before. So an erasure sees everything stored before it, and everything stored later sees the
erasure. fsck checks the same rows by digests, and erasing again redacts what it finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, and_, func, inspect, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.facts import sentences
from colmlm.kb.facts.redaction import (
    MARK,
    ErasureTarget,
    FormerText,
    NamePlace,
    QuotedSplice,
    blank_out,
    blank_value,
    marked_spans,
    quoted_stretches,
    quotes_redaction_condition,
    redact_about,
    redact_json,
    redacted_columns,
    spans_apart,
    store_redacted,
    strings_of,
)
from colmlm.kb.facts.suppression import ErasedTexts, TextOrigin
from colmlm.kb.tables import (
    AttributionRow,
    ChangeRow,
    DocumentRow,
    ErasureRequestRow,
    FactRow,
    FeedbackRow,
    ForgetRunRow,
    GenerationRow,
    JobRow,
    QuestionOutcomeRow,
    QuestionRow,
    TableRow,
    answer_modes,
    content_of,
)
from colmlm.kb.texts.wording import Finder, JoinedFinder, Phrases, Span, forms_of_text, may_say

Row = TypeVar("Row", bound=TableRow)
FinderOf = Callable[[TextOrigin], Finder]
# Rows that say an erased fact, with their redacted columns.
RedactedRows = Iterator[tuple[Any, dict[str, Any]]]

QUOTED_PARTS = ("text", "question")  # parts of a selector that hold text of facts, and not a name


@dataclass(frozen=True, slots=True)
class Quoting:
    """The ids of rows that say an erased fact, or said it until they were redacted."""

    generations: tuple[int, ...] = ()
    forget_runs: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    erasure_requests: tuple[int, ...] = ()
    questions: tuple[int, ...] = ()
    question_outcomes: tuple[int, ...] = ()
    feedback: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) for f in fields(self))

    def describe_findings(self) -> tuple[str, ...]:
        """Give one line for each kind of rows that were found, with their number and up to ten ids."""
        names = {f.name: f.name.replace("_", " ").replace("generations", "outputs") for f in fields(self)}
        found = {names[f.name]: getattr(self, f.name) for f in fields(self)}
        return tuple(
            f"{len(ids)} {what} that say an erased fact: {list(ids[:10])}"
            for what, ids in found.items()
            if ids
        )


class ErasedFacts:
    """Erased facts, recognised in stored texts by digests of their texts, and by splices not yet redacted.

    The `targets` are being erased, so their texts still exist. Those of their texts in `wide` are searched for in every
    stored text, the others only in texts that name the fact. `met` collects the ids of facts that were found.
    """

    def __init__(
        self,
        texts: ErasedTexts,
        fact_ids: Collection[int],
        targets: Sequence[ErasureTarget] = (),
        wide: Collection[str] = (),
    ) -> None:
        self.texts, self.fact_ids, self.targets, self.wide = texts, fact_ids, targets, wide
        self.met: set[int] = set()
        self._everywhere = Phrases(wide)

    @classmethod
    def read(cls, session: Session) -> ErasedFacts:
        """Read the digests of all erased texts, and which erased facts have splices in outputs."""
        spliced = select(FactRow.id).join(AttributionRow, AttributionRow.fact_id == FactRow.id)
        erased = session.scalars(spliced.where(FactRow.erased_seq.is_not(None)).distinct())
        return cls(ErasedTexts.read(session), frozenset(erased))

    @classmethod
    def of_erasure(
        cls,
        session: Session,
        targets: Sequence[ErasureTarget],
        again: Sequence[int],
        standing: Set[str],
    ) -> ErasedFacts:
        """Read the facts of one erasure: those that it erases now, and those that it erases `again`.

        Texts that other facts say, with one of their forms in `standing`, are sought only where their fact is named.
        """
        fact_ids = frozenset((*(target.fact_id for target in targets), *again))
        wide = [said for said in strings_of(targets) if standing.isdisjoint(forms_of_text(said))]
        return cls(ErasedTexts.read(session, again), fact_ids, targets, wide)

    def outputs_condition(self) -> ColumnElement[bool]:
        """Give an SQL condition for outputs that may say one of the texts outside a splice of its fact."""
        return or_(
            GenerationRow.seq < self.texts.last_seq_erased_everywhere,
            may_say(GenerationRow.prompt, self.wide),
            may_say(GenerationRow.output, self.wide),
        )

    def finder(self, origin: TextOrigin) -> Finder:
        """Give a finder of the erased texts that must not stand in a text of this origin."""
        own = [target for target in self.targets if target.fact_id in origin.fact_ids]
        finder: Finder = JoinedFinder(Phrases(strings_of(own)), self._everywhere) if own else self._everywhere
        return JoinedFinder(finder, self.texts.finder_for(origin, self.met)) if self.texts else finder

    def is_part_of_target(self, words: str, origin: TextOrigin) -> bool:
        """Tell whether these words are part of a text of a target that this origin names."""
        own = strings_of(target for target in self.targets if target.fact_id in origin.fact_ids)
        whole = [form for string in own for form in forms_of_text(string)]
        return any(part in form for part in forms_of_text(words) if part for form in whole)


def find_quotations(session: Session, gone: ErasedFacts) -> Quoting:
    """Find the stored rows that say a text of these erased facts. Changes nothing."""
    return Quoting(*(tuple(row.id for row, _ in rows(session, gone)) for rows in (quoting_outputs, *_OTHERS)))


def facts_still_said(session: Session) -> set[int]:
    """Give the ids of erased facts that some stored row still says."""
    gone = ErasedFacts.read(session)
    find_quotations(session, gone)
    return gone.met


def redact_quotations(session: Session, gone: ErasedFacts, seq: int) -> Quoting:
    """Redact the rows that say a text of these erased facts, as part of change `seq`, and give their ids."""
    return Quoting(
        tuple(redact_quoting_outputs(session, gone, seq)),
        *(tuple(_redact(session, rows(session, gone))) for rows in _OTHERS),
    )


def finder_for_origin(session: Session, origin: TextOrigin) -> Finder:
    """Give a finder of erased texts that this origin's text must not say. The transaction must `hold_off_erasure`."""
    return ErasedTexts.forbidden_in(session, origin).finder_for(origin)


def redact_for_origin(session: Session, value: Any, origin: TextOrigin) -> Any:
    """Redact erased texts in a text or JSON value to be stored. The transaction must `hold_off_erasure`."""
    return redact_json(value, finder_for_origin(session, origin))


def redact_selector(session: Session, selector: dict[str, Any], origin: TextOrigin) -> dict[str, Any]:
    """Redact a selector to be stored: erased texts, and its whole text and question if a fact of it was erased."""
    kept: dict[str, Any] = redact_for_origin(session, selector, origin)
    if _erased_among(session, origin.fact_ids):
        kept |= {name: MARK * len(kept[name]) for name in QUOTED_PARTS if name in kept}
    return kept


def redact_plan(session: Session, told: dict[str, Any], origin: TextOrigin) -> dict[str, Any]:
    """Redact, in a plan or verification to be stored, the texts of facts that were erased since it was made."""
    kept: dict[str, Any] = redact_for_origin(session, told, origin)
    return _without_alike(kept, _erased_among(session, origin.fact_ids))


def _without_alike(told: dict[str, Any], erased: Collection[int]) -> dict[str, Any]:
    """Drop from a plan or verification what would give away the value of one of its facts that is `erased`.

    These are the survivors of that fact's question, and the equivalents that the plan lists and does not include.
    """
    less = dict(told)
    if "survivors" in told:
        less["survivors"] = [one for one in told["survivors"] if one["asked_fact_id"] not in erased]
    if erased and told.get("equivalents") and not told["included"]:
        less["equivalents"] = []
    return less


def redact_job(session: Session, job: JobRow) -> None:
    """Redact, in a job, the texts of facts erased since it was submitted. The transaction must hold erasures off."""
    _store(job, _job_values(job, finder_for_origin(session, TextOrigin(at=job.created_at))))
    session.flush()


def finder_for_facts(session: Session, fact_ids: Collection[int]) -> Finder:
    """Give a finder of the erased texts that a kept question which names these facts must not say.

    The transaction must hold erasures off.
    """
    return finder_for_origin(session, TextOrigin(frozenset(fact_ids), at=datetime.now(UTC)))


def redact_outcomes(session: Session, rows: Sequence[QuestionOutcomeRow]) -> None:
    """Redact, in question outcomes to be stored, the texts of facts that were erased since their run began."""
    gone = _erased_among(session, {fact_id for row in rows for fact_id in row.fact_ids})
    since = min((row.seq for row in rows), default=0)
    texts = ErasedTexts.forbidden_in(session, TextOrigin(frozenset(gone), seq=since))
    for row in rows if gone or texts else ():
        _store(row, _outcome_values(row, texts.finder_for, gone))


def _erased_among(session: Session, fact_ids: Collection[int]) -> set[int]:
    is_erased = FactRow.id == func.any(sorted(fact_ids)), FactRow.erased_seq.is_not(None)
    return set(session.scalars(select(FactRow.id).where(*is_erased)))


def _store(row: TableRow, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(row, name, value)


def _redact(session: Session, rows: RedactedRows) -> Iterator[int]:
    for row, values in rows:
        _store(row, values)
        yield row.id
    session.flush()


def _rows_in_order(session: Session, row: type[Row]) -> Iterator[Row]:
    """Yield all rows of a table, ordered by the first column of their primary key."""
    statement = select(row).order_by(inspect(row).primary_key[0])
    yield from session.scalars(statement.execution_options(populate_existing=True, yield_per=1000))


def _quoting_forget_runs(session: Session, gone: ErasedFacts) -> RedactedRows:
    for run in _rows_in_order(session, ForgetRunRow):
        origin = TextOrigin(frozenset(run.fact_ids), seq=run.planned_seq)
        values = redacted_columns(run, content_of(ForgetRunRow), gone.finder(origin))
        parts = {name for name in QUOTED_PARTS if gone.is_part_of_target(run.selector.get(name, ""), origin)}
        if parts:
            covered = {name: MARK * len(run.selector[name]) for name in parts}
            values["selector"] = values.get("selector", run.selector) | covered
        erased = _erased_among(session, run.fact_ids) | set(run.fact_ids).intersection(gone.fact_ids)
        for name in ("plan", "verification"):
            told = values.get(name, getattr(run, name))
            if told and (less := _without_alike(told, erased)) != told:
                values[name] = less
        if values:
            yield run, values


def _quoting_jobs(session: Session, gone: ErasedFacts) -> RedactedRows:
    for job in _rows_in_order(session, JobRow):
        if values := _job_values(job, gone.finder(TextOrigin(at=job.created_at))):
            yield job, values


def _job_values(job: JobRow, finder: Finder) -> dict[str, Any]:
    """Give new values for the columns of a job in which the finder finds an erased text.

    Of a job that is not over only the reason is redacted among the arguments, since the others are its task.
    """
    values = redacted_columns(job, [name for name in content_of(JobRow) if name != "arguments"], finder)
    names = job.arguments.keys() if job.finished_at is not None else job.arguments.keys() & {"reason"}
    arguments = job.arguments | redact_json({name: job.arguments[name] for name in names}, finder)
    return values if arguments == job.arguments else {**values, "arguments": arguments}


def _quoting_rows_about_facts(
    table: type[ErasureRequestRow] | type[QuestionRow], session: Session, gone: ErasedFacts
) -> RedactedRows:
    """Yield the requests or kept questions that say an erased fact, with their redacted columns."""
    for row in _rows_in_order(session, table):
        origin = TextOrigin(frozenset(row.fact_ids), at=row.at)
        if values := redacted_columns(row, content_of(table), gone.finder(origin)):
            yield row, values


def _quoting_outcomes(session: Session, gone: ErasedFacts) -> RedactedRows:
    """Yield question outcomes that say an erased fact. A value that an erased fact answered is redacted whole."""
    for row in _rows_in_order(session, QuestionOutcomeRow):
        if values := _outcome_values(row, gone.finder, gone.fact_ids):
            yield row, values


def _outcome_values(row: QuestionOutcomeRow, finder_of: FinderOf, gone: Collection[int]) -> dict[str, Any]:
    finder = finder_of(TextOrigin(frozenset(row.fact_ids), seq=row.seq))
    if row.value and any(fact_id in gone for fact_id in row.fact_ids):
        finder = JoinedFinder(finder, Phrases([row.value.replace(MARK, " ")]))
    return redacted_columns(row, content_of(QuestionOutcomeRow), finder)


def _quoting_feedback(session: Session, gone: ErasedFacts) -> RedactedRows:
    said = or_(
        FeedbackRow.comment.is_not(None), FeedbackRow.value.is_not(None), FeedbackRow.on_behalf_of != ""
    )
    rows = session.scalars(
        select(FeedbackRow).where(said).order_by(FeedbackRow.id).execution_options(populate_existing=True)
    ).all()
    splices = splices_of(session, [row.generation_id for row in rows])
    for row in rows:
        facts = frozenset(splice.fact_id for splice in splices.get(row.generation_id, ()))
        finder = gone.finder(TextOrigin(facts, at=row.at))
        if values := redacted_columns(row, content_of(FeedbackRow), finder):
            if "on_behalf_of" in values:  # two people whose names come out the same have a thumb each
                values["on_behalf_of"] += f" {row.id}"
            yield row, values


_OTHERS = (
    _quoting_forget_runs,
    _quoting_jobs,
    partial(_quoting_rows_about_facts, ErasureRequestRow),
    partial(_quoting_rows_about_facts, QuestionRow),
    _quoting_outcomes,
    _quoting_feedback,
)  # in the order of the fields of `Quoting`


# Redacts stored outputs that say an erased fact: where it was spliced, said otherwise, or quoted with its
# document.
#
# The functions take the session first and never commit.

AT_ONCE = 500


def without_quotations(
    prompt: str,
    output: str,
    splices: Sequence[QuotedSplice],
    erased: Collection[int],
    finder: Finder,
    marks: Sequence[Span] = (),
) -> tuple[str, str]:
    """Redact, in a prompt and output, splices of erased facts, repetitions of these, and the finder's spans.

    A splice of another fact stays, even with the same value. `marks` are spans that the quoted document redacts.
    """
    own = [(s.output_start, s.output_end) for s in splices if s.fact_id in erased]
    others = [(s.output_start, s.output_end) for s in splices if s.fact_id not in erased]
    spliced = Phrases(output[start:end].replace(MARK, " ") for start, end in own)
    in_prompt, in_output = ((*finder.spans(text), *spliced.spans(text)) for text in (prompt, output))
    return blank_out(prompt, in_prompt), blank_out(output, (*own, *spans_apart((*in_output, *marks), others)))


def redact_quoting_outputs(session: Session, gone: ErasedFacts, seq: int) -> Iterator[int]:
    """Redact outputs that say a text of these erased facts, as part of change `seq`, and yield their ids."""
    in_prompt: list[int] = []
    in_output: list[int] = []
    for row, values in quoting_outputs(session, gone):
        (in_output if row.prompt == values["prompt"] else in_prompt).append(row.id)
        row.prompt, row.output, row.redacted_seq = values["prompt"], values["output"], seq
        yield row.id
    session.flush()
    drop_queries(session, gone.fact_ids, in_prompt, in_output)


def drop_queries(
    session: Session, fact_ids: Collection[int], in_prompt: Sequence[int], in_output: Sequence[int]
) -> None:
    """Set to NULL the stored queries of lookups that spliced these facts, or that were made from a redacted text.

    An answer with such a splice loses all its queries, and so does each output that was redacted in its prompt. One
    that was redacted in its output alone loses the queries of its lookups without a hit.
    """
    used = AttributionRow.fact_id == func.any(list(fact_ids))
    answers = select(GenerationRow.id).join(
        AttributionRow, (AttributionRow.generation_id == GenerationRow.id) & used
    )
    answers = answers.where(GenerationRow.mode.in_(answer_modes))
    of_output = AttributionRow.generation_id
    gone = or_(
        used,
        of_output.in_(answers),
        of_output == func.any(list(in_prompt)),
        and_(of_output == func.any(list(in_output)), AttributionRow.outcome != "hit"),
    )
    session.execute(update(AttributionRow).where(gone, AttributionRow.query.is_not(None)).values(query=None))


def quoting_outputs(session: Session, gone: ErasedFacts) -> RedactedRows:
    """Yield the outputs that say a text of these erased facts, with prompt and output redacted. Changes nothing."""
    spliced = select(AttributionRow.generation_id).where(
        AttributionRow.fact_id == func.any(list(gone.fact_ids))
    )
    statement = (
        select(GenerationRow)
        .where(or_(GenerationRow.id.in_(spliced), gone.outputs_condition(), quotes_redaction_condition()))
        .order_by(GenerationRow.id)
    )
    last, found = 0, True
    while found:
        page = list(
            session.scalars(
                statement.where(GenerationRow.id > last)
                .limit(AT_ONCE)
                .execution_options(populate_existing=True)
            )
        )
        splices = splices_of(session, [row.id for row in page])
        stretches = quoted_stretches(session, [row.id for row in page])
        for row in page:
            hits = splices.get(row.id, [])
            origin = TextOrigin(frozenset(s.fact_id for s in hits), seq=row.seq)
            marks = _redacted_spans(row, hits, stretches.get(row.id))
            prompt, output = without_quotations(
                row.prompt, row.output, hits, gone.fact_ids, gone.finder(origin), marks
            )
            if (prompt, output) != (row.prompt, row.output):
                gone.met.update(origin.fact_ids.intersection(gone.fact_ids))
                yield row, {"prompt": prompt, "output": output}
        last, found = (page[-1].id, True) if page else (last, False)


def _redacted_spans(row: GenerationRow, hits: Sequence[Any], stretch: str | None) -> list[Span]:
    """Give the spans of an output that are redacted in the document's `stretch` that it quotes (None: none)."""
    if stretch is None or row.quoted_start is None or row.quoted_end is None:
        return []
    return marked_spans(len(row.output), (row.quoted_start, row.quoted_end), hits, stretch)


def splices_of(session: Session, generation_ids: list[int]) -> dict[int, list[Any]]:
    """Give, by output, the splices that are hits, with their places in the output and in the text that it quotes."""
    statement = select(
        AttributionRow.generation_id,
        AttributionRow.fact_id,
        AttributionRow.output_start,
        AttributionRow.output_end,
        AttributionRow.quoted_start,
        AttributionRow.quoted_end,
    ).where(AttributionRow.generation_id == func.any(generation_ids), AttributionRow.outcome == "hit")
    found: dict[int, list[Any]] = {}
    for row in session.execute(statement):
        found.setdefault(row.generation_id, []).append(row)
    return found


# Blanks the name of a person in place, where the plan for the person says (`kb.removal.persons`).

_UNIQUE = {"feedback": {"on_behalf_of"}, "question_set": {"name"}, "document": {"external_id"}}


def row_classes() -> dict[str, type[TableRow]]:
    """Give the mapped class of each table by the table's name."""
    return {one.class_.__tablename__: one.class_ for one in TableRow.registry.mappers}


def rows_of_places(session: Session, places: Sequence[NamePlace]) -> Iterator[tuple[NamePlace, Any]]:
    """Yield each place with the row that it is in; None if the table or the row does not exist."""
    classes = row_classes()
    for place in places:
        row = classes.get(place.table)
        yield place, None if row is None else session.get(row, place.row_id, populate_existing=True)


def blank_places(
    session: Session,
    places: Sequence[NamePlace],
    fact_ids: Sequence[int],
    seq: int,
    former: dict[int, FormerText],
) -> list[int]:
    """Blank the names at these places, as part of change `seq`, and give the ids of the documents among them.

    `fact_ids` are the facts that the change erases. `former` receives the texts that changed documents had at first.
    """
    by_row = defaultdict[tuple[str, int], list[NamePlace]](list)
    for place in places:
        by_row[place.table, place.row_id].append(place)
    editions = _first_editions(session, [n for table, n in by_row if table == "document"])
    asked, answered, documents, classes = list[int](), list[int](), dict[int, bool](), row_classes()
    for (table, row_id), columns in by_row.items():
        row: Any = session.get_one(classes[table], row_id, populate_existing=True)
        values = {
            place.column: blank_value(
                getattr(row, place.column), place.stretches, keep_blanks=place.column == "payload"
            )
            for place in columns
        }
        for column in values.keys() & _UNIQUE.get(table, set()):
            values[column] += f" {editions.get(row_id, row_id)}"
        values = {name: value for name, value in values.items() if value != getattr(row, name)}
        if isinstance(row, DocumentRow):
            documents[row_id] = bool({"text", "title"} & values.keys())
            store_redacted(session, row, values, fact_ids, former)
            continue
        if isinstance(row, ForgetRunRow) and "certificate" in values:
            values["certificate"] = (
                None  # another text would not have its signature; it is issued again when asked for
            )
        if isinstance(row, GenerationRow):
            values["redacted_seq"] = seq
            (asked if "prompt" in values else answered).append(row_id)
        for column, value in values.items():
            setattr(row, column, value)
    session.flush()
    drop_queries(session, (), asked, answered)
    sentences.write_document_sentences(
        session, [number for number, in_words in documents.items() if in_words]
    )
    return sorted(documents)


def _first_editions(session: Session, document_ids: Sequence[int]) -> dict[int, int]:
    """Give, by document id, the id of its first edition, which ends the blanked external ids of all its editions."""
    source = DocumentRow.corpus, DocumentRow.external_id
    first = func.min(DocumentRow.id).over(partition_by=source).label("first")
    editions = select(DocumentRow.id, first).subquery()
    found = session.execute(select(editions).where(editions.c.id == func.any(list(document_ids)))).all()
    return {row.id: row.first for row in found} if document_ids else {}


def redact_erased_again(session: Session, again: Sequence[int]) -> Iterator[int]:
    """Redact again what is stored about documents of facts erased before, unless mentions were "none" then.

    Yields the ids of the changed documents.
    """
    reach = select(FactRow.id).join(ChangeRow, ChangeRow.seq == FactRow.erased_seq)
    reaching = reach.where(ChangeRow.payload["mentions"].astext.is_distinct_from("none"))
    for fact_id in session.scalars(reaching.where(FactRow.id == func.any(list(again)))).all():
        said = ErasedTexts.read(session, [fact_id]).finder_for(TextOrigin(frozenset({fact_id})))
        yield from redact_about(session, fact_id, said)
