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
    quotes_redacted_text,
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
        """Give one sentence for each kind of row, with its number and the first ids."""
        names = {f.name: f.name.replace("_", " ").replace("generations", "outputs") for f in fields(self)}
        found = {names[f.name]: getattr(self, f.name) for f in fields(self)}
        return tuple(
            f"{len(ids)} {what} that say an erased fact: {list(ids[:10])}"
            for what, ids in found.items()
            if ids
        )


class ErasedFacts:
    """Erased facts, recognised by digests of their texts and by splices that are not redacted.

    The texts of `targets`, which are being erased, still exist. Those of them in `wide` count in every text. `met`
    collects the facts found.
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
        """Read all erased facts."""
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
        """Read the facts that are being erased, and those that are erased `again`.

        Texts with a form in `standing` are said by other facts too, and do not count everywhere.
        """
        fact_ids = frozenset((*(target.fact_id for target in targets), *again))
        wide = [said for said in strings_of(targets) if standing.isdisjoint(forms_of_text(said))]
        return cls(ErasedTexts.read(session, again), fact_ids, targets, wide)

    def outputs(self) -> ColumnElement[bool]:
        """Give a condition (SQL) for the outputs that may say one of the texts without a splice."""
        return or_(
            GenerationRow.seq < self.texts.last_everywhere,
            may_say(GenerationRow.prompt, self.wide),
            may_say(GenerationRow.output, self.wide),
        )

    def finder(self, said: TextOrigin) -> Finder:
        """Give a finder of the texts that count in a text of this origin."""
        own = [target for target in self.targets if target.fact_id in said.fact_ids]
        finder: Finder = JoinedFinder(Phrases(strings_of(own)), self._everywhere) if own else self._everywhere
        return JoinedFinder(finder, self.texts.finder_for(said, self.met)) if self.texts else finder

    def is_part(self, words: str, said: TextOrigin) -> bool:
        """Say whether these words are part of a text of a target that this origin names."""
        own = strings_of(target for target in self.targets if target.fact_id in said.fact_ids)
        whole = [form for string in own for form in forms_of_text(string)]
        return any(part in form for part in forms_of_text(words) if part for form in whole)


def find_quotations(session: Session, gone: ErasedFacts) -> Quoting:
    """Find the rows that say one of these texts. Changes nothing."""
    return Quoting(*(tuple(row.id for row, _ in rows(session, gone)) for rows in (quoting_facts, *_OTHERS)))


def facts_still_said(session: Session) -> set[int]:
    """Give the erased facts that some row still says."""
    gone = ErasedFacts.read(session)
    find_quotations(session, gone)
    return gone.met


def redact_quotations(session: Session, gone: ErasedFacts, seq: int) -> Quoting:
    """Redact the rows that say one of these texts, as part of change `seq`, and give their ids."""
    return Quoting(
        tuple(redact_quoting_outputs(session, gone, seq)),
        *(tuple(_redact(session, rows(session, gone))) for rows in _OTHERS),
    )


def finder_for_origin(session: Session, said: TextOrigin) -> Finder:
    """Give a finder of what a text of this origin must not say now. The transaction must hold erasures off."""
    return ErasedTexts.counting(session, said).finder_for(said)


def redact_for_origin(session: Session, value: Any, said: TextOrigin) -> Any:
    """Redact a text or JSON value before it is stored now. The transaction must hold erasures off."""
    return redact_json(value, finder_for_origin(session, said))


def redact_selector(session: Session, selector: dict[str, Any], said: TextOrigin) -> dict[str, Any]:
    """Redact a selector before it is stored now: its text and question where one of its facts was erased."""
    kept: dict[str, Any] = redact_for_origin(session, selector, said)
    if _erased_among(session, said.fact_ids):
        kept |= {name: MARK * len(kept[name]) for name in QUOTED_PARTS if name in kept}
    return kept


def redact_plan(session: Session, told: dict[str, Any], said: TextOrigin) -> dict[str, Any]:
    """Redact a plan or verification before it is stored now, of what was erased since it was made."""
    kept: dict[str, Any] = redact_for_origin(session, told, said)
    return _without_alike(kept, _erased_among(session, said.fact_ids))


def _without_alike(told: dict[str, Any], erased: Collection[int]) -> dict[str, Any]:
    """Drop from a plan or verification what says the same as a fact of it that is `erased`, and so tells its value.

    These are the survivors of its question, and the equivalents that the plan lists and does not include.
    """
    less = dict(told)
    if "survivors" in told:
        less["survivors"] = [one for one in told["survivors"] if one["asked_fact_id"] not in erased]
    if erased and told.get("equivalents") and not told["included"]:
        less["equivalents"] = []
    return less


def redact_job(session: Session, job: JobRow) -> None:
    """Redact what this job says of facts erased since it was asked for. The transaction must hold erasures off."""
    _store(job, _job_values(job, finder_for_origin(session, TextOrigin(at=job.created_at))))
    session.flush()


def finder_for_facts(session: Session, fact_ids: Collection[int]) -> Finder:
    """Give a finder of what a question that names these facts must not say now.

    The transaction must hold erasures off.
    """
    return finder_for_origin(session, TextOrigin(frozenset(fact_ids), at=datetime.now(UTC)))


def redact_outcomes(session: Session, rows: Sequence[QuestionOutcomeRow]) -> None:
    """Redact outcomes of a run, before they are stored, of what was erased since it began."""
    gone = _erased_among(session, {fact_id for row in rows for fact_id in row.fact_ids})
    since = min((row.seq for row in rows), default=0)
    texts = ErasedTexts.counting(session, TextOrigin(frozenset(gone), seq=since))
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


def _every(session: Session, row: type[Row]) -> Iterator[Row]:
    """Read all rows of a table by their number."""
    statement = select(row).order_by(inspect(row).primary_key[0])
    yield from session.scalars(statement.execution_options(populate_existing=True, yield_per=1000))


def _redact_forget_runs(session: Session, gone: ErasedFacts) -> RedactedRows:
    for run in _every(session, ForgetRunRow):
        said = TextOrigin(frozenset(run.fact_ids), seq=run.planned_seq)
        values = redacted_columns(run, content_of(ForgetRunRow), gone.finder(said))
        parts = {name for name in QUOTED_PARTS if gone.is_part(run.selector.get(name, ""), said)}
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


def _jobs(session: Session, gone: ErasedFacts) -> RedactedRows:
    for job in _every(session, JobRow):
        if values := _job_values(job, gone.finder(TextOrigin(at=job.created_at))):
            yield job, values


def _job_values(job: JobRow, finder: Finder) -> dict[str, Any]:
    """Give the redacted columns of a job.

    Of a job that is not over only the reason is redacted among the arguments, since the others are its task.
    """
    values = redacted_columns(job, [name for name in content_of(JobRow) if name != "arguments"], finder)
    names = job.arguments.keys() if job.finished_at is not None else job.arguments.keys() & {"reason"}
    arguments = job.arguments | redact_json({name: job.arguments[name] for name in names}, finder)
    return values if arguments == job.arguments else {**values, "arguments": arguments}


def _of_facts(
    table: type[ErasureRequestRow] | type[QuestionRow], session: Session, gone: ErasedFacts
) -> RedactedRows:
    """Yield the rows of a table whose texts were written of the facts that each names."""
    for row in _every(session, table):
        said = TextOrigin(frozenset(row.fact_ids), at=row.at)
        if values := redacted_columns(row, content_of(table), gone.finder(said)):
            yield row, values


def _question_outcomes(session: Session, gone: ErasedFacts) -> RedactedRows:
    """Yield outcomes of runs. Where one of these facts answered, the value is redacted, however little it says."""
    for row in _every(session, QuestionOutcomeRow):
        if values := _outcome_values(row, gone.finder, gone.fact_ids):
            yield row, values


def _outcome_values(row: QuestionOutcomeRow, finder_of: FinderOf, gone: Collection[int]) -> dict[str, Any]:
    finder = finder_of(TextOrigin(frozenset(row.fact_ids), seq=row.seq))
    if row.value and any(fact_id in gone for fact_id in row.fact_ids):
        finder = JoinedFinder(finder, Phrases([row.value.replace(MARK, " ")]))
    return redacted_columns(row, content_of(QuestionOutcomeRow), finder)


def _feedback(session: Session, gone: ErasedFacts) -> RedactedRows:
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
    _redact_forget_runs,
    _jobs,
    partial(_of_facts, ErasureRequestRow),
    partial(_of_facts, QuestionRow),
    _question_outcomes,
    _feedback,
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
    """Redact the outputs that say one of these texts, as part of change `seq`, and yield their ids."""
    asked: list[int] = []
    said: list[int] = []
    for row, values in quoting_facts(session, gone):
        (said if row.prompt == values["prompt"] else asked).append(row.id)
        row.prompt, row.output, row.redacted_seq = values["prompt"], values["output"], seq
        yield row.id
    session.flush()
    drop_queries(session, gone.fact_ids, asked, said)


def drop_queries(
    session: Session, fact_ids: Collection[int], asked: Sequence[int], said: Sequence[int]
) -> None:
    """Remove the queries by which these facts were spliced. All lookups of an answer have the one of its question.

    A query was made from what stood before it: so all go of outputs whose prompt was redacted (`asked`), and where only
    what they `said` was, those that found nothing.
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
        of_output == func.any(list(asked)),
        and_(of_output == func.any(list(said)), AttributionRow.outcome != "hit"),
    )
    session.execute(update(AttributionRow).where(gone, AttributionRow.query.is_not(None)).values(query=None))


def quoting_facts(session: Session, gone: ErasedFacts) -> RedactedRows:
    """Yield the outputs that say one of these texts, with prompt and output redacted. Changes nothing."""
    spliced = select(AttributionRow.generation_id).where(
        AttributionRow.fact_id == func.any(list(gone.fact_ids))
    )
    statement = (
        select(GenerationRow)
        .where(or_(GenerationRow.id.in_(spliced), gone.outputs(), quotes_redacted_text()))
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
            said = TextOrigin(frozenset(s.fact_id for s in hits), seq=row.seq)
            marks = _redacted_spans(row, hits, stretches.get(row.id))
            prompt, output = without_quotations(
                row.prompt, row.output, hits, gone.fact_ids, gone.finder(said), marks
            )
            if (prompt, output) != (row.prompt, row.output):
                gone.met.update(said.fact_ids.intersection(gone.fact_ids))
                yield row, {"prompt": prompt, "output": output}
        last, found = (page[-1].id, True) if page else (last, False)


def _redacted_spans(row: GenerationRow, hits: Sequence[Any], stretch: str | None) -> list[Span]:
    """Give the spans of an output that are redacted in the document that it quotes (None: it quotes none)."""
    if stretch is None or row.quoted_start is None or row.quoted_end is None:
        return []
    return marked_spans(len(row.output), (row.quoted_start, row.quoted_end), hits, stretch)


def splices_of(session: Session, generation_ids: list[int]) -> dict[int, list[Any]]:
    """Give by output the splices that said a fact, with where they stand in the output and in what it quotes."""
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
    """Give the tables by name."""
    return {one.class_.__tablename__: one.class_ for one in TableRow.registry.mappers}


def rows_of_places(session: Session, places: Sequence[NamePlace]) -> Iterator[tuple[NamePlace, Any]]:
    """Read the row of each place; None where there is none."""
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
    """Blank these places, as part of change `seq`, which erases these facts; give the documents among them.

    `former` takes the texts of documents that change, as they were first.
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
    """Give for each document the first edition of it, by which all its editions are named alike."""
    source = DocumentRow.corpus, DocumentRow.external_id
    first = func.min(DocumentRow.id).over(partition_by=source).label("first")
    editions = select(DocumentRow.id, first).subquery()
    found = session.execute(select(editions).where(editions.c.id == func.any(list(document_ids)))).all()
    return {row.id: row.first for row in found} if document_ids else {}


def redact_erased_again(session: Session, again: Sequence[int]) -> Iterator[int]:
    """Redact the texts of the documents of these facts, where an earlier erasure took mentions too.

    Gives the ids of what was redacted.
    """
    reach = select(FactRow.id).join(ChangeRow, ChangeRow.seq == FactRow.erased_seq)
    reaching = reach.where(ChangeRow.payload["mentions"].astext.is_distinct_from("none"))
    for fact_id in session.scalars(reaching.where(FactRow.id == func.any(list(again)))).all():
        said = ErasedTexts.read(session, [fact_id]).finder_for(TextOrigin(frozenset({fact_id})))
        yield from redact_about(session, fact_id, said)
