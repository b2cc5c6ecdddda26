"""Quotations: finds and redacts stored texts outside the facts that repeat what an erased fact said.

The functions take the session first and never commit. Each column of the tables declares what an erasure does with it
(`kb.tables.declarative`); what is redacted here are the columns with content of these tables:

- generation: where the fact was spliced, wherever else they say it, and where the document that an output quotes is
  redacted (`kb.facts.redaction`). Its attributions lose their queries: of an answer with any of its splices, with a
  redacted prompt, and where nothing was found in a redacted output;
- forget_run: in a run that names the fact also a selector's text or question that is part of what the fact said;
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

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from colmlm.kb.facts import kept_questions
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.facts import Gone, Sought
from colmlm.kb.facts.kept_questions import RedactedRows
from colmlm.kb.facts.redaction import (
    MARK,
    blank_out,
    marked,
    quoted_stretches,
    redact_json,
    redacted_columns,
    split_apart,
    with_marks,
)
from colmlm.kb.tables import (
    AttributionRow,
    ErasureRequestRow,
    FactRow,
    FeedbackRow,
    ForgetRunRow,
    GenerationRow,
    JobRow,
    answer_modes,
    content_of,
)
from colmlm.kb.texts.wording import Finder, Phrases, Span

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

    def told(self) -> tuple[str, ...]:
        """Gives one sentence for each kind of row, with its number and the first ids."""
        names = {f.name: f.name.replace("_", " ").replace("generations", "outputs") for f in fields(self)}
        found = {names[f.name]: getattr(self, f.name) for f in fields(self)}
        return tuple(
            f"{len(ids)} {what} that say an erased fact: {list(ids[:10])}"
            for what, ids in found.items()
            if ids
        )

    def __or__(self, other: Quoting) -> Quoting:
        both = {f.name: {*getattr(self, f.name), *getattr(other, f.name)} for f in fields(self)}
        return Quoting(**{name: tuple(sorted(ids)) for name, ids in both.items()})


def find_quotations(session: Session, sought: Sought) -> Quoting:
    """Finds the rows that say one of these texts. Changes nothing."""
    return Quoting(*(tuple(row.id for row, _ in rows(session, sought)) for rows in (quoting_facts, *_OTHERS)))


def still_said(session: Session) -> set[int]:
    """Gives the erased facts that some row still says."""
    gone = Gone.read(session)
    find_quotations(session, gone)
    return gone.met


def redact_quotations(session: Session, sought: Sought, seq: int) -> Quoting:
    """Redacts the rows that say one of these texts, as part of change `seq`, and gives their ids."""
    return Quoting(
        tuple(redact_quoting_outputs(session, sought, seq)),
        *(tuple(_redact(session, rows(session, sought))) for rows in _OTHERS),
    )


def redacted_since(session: Session, value: Any, said: TextOrigin) -> Any:
    """Redacts a text or JSON value as it has to be stored now. The transaction must hold erasures off."""
    return redact_json(value, ErasedTexts.counting(session, said).within(said))


def redacted_selector(session: Session, selector: dict[str, Any], said: TextOrigin) -> dict[str, Any]:
    """Redacts a selector as it has to be stored now, with its text and question where one of its facts was erased."""
    kept: dict[str, Any] = redacted_since(session, selector, said)
    erased = select(FactRow.id).where(
        FactRow.id == func.any(sorted(said.fact_ids)), FactRow.erased_seq.is_not(None)
    )
    if session.scalars(erased.limit(1)).first() is not None:
        kept |= {name: MARK * len(kept[name]) for name in QUOTED_PARTS if name in kept}
    return kept


def redact_job(session: Session, job: JobRow) -> None:
    """Redacts what this job says of facts erased since it was asked for. The transaction must hold erasures off."""
    said = TextOrigin(at=job.created_at)
    for name, value in _job_values(job, ErasedTexts.counting(session, said).within(said)).items():
        setattr(job, name, value)
    session.flush()


def _redact(session: Session, rows: RedactedRows) -> Iterator[int]:
    for row, values in rows:
        for name, value in values.items():
            setattr(row, name, value)
        yield row.id
    session.flush()


def _runs(session: Session, sought: Sought) -> RedactedRows:
    for run in session.scalars(
        select(ForgetRunRow).order_by(ForgetRunRow.id).execution_options(populate_existing=True)
    ):
        said = TextOrigin(frozenset(run.fact_ids), seq=run.planned_seq)
        values = redacted_columns(run, content_of(ForgetRunRow), sought.finder(said))
        parts = {name for name in QUOTED_PARTS if sought.is_part(run.selector.get(name, ""), said)}
        if parts:
            marked = {name: MARK * len(run.selector[name]) for name in parts}
            values["selector"] = values.get("selector", run.selector) | marked
        if values:
            yield run, values


def _jobs(session: Session, sought: Sought) -> RedactedRows:
    for job in session.scalars(select(JobRow).order_by(JobRow.id).execution_options(populate_existing=True)):
        if values := _job_values(job, sought.finder(TextOrigin(at=job.created_at))):
            yield job, values


def _job_values(job: JobRow, finder: Finder) -> dict[str, Any]:
    """Gives the redacted columns of a job.

    Of a job that is not over only the reason is redacted among the arguments, since the others are its task.
    """
    values = redacted_columns(job, [name for name in content_of(JobRow) if name != "arguments"], finder)
    names = job.arguments.keys() if job.finished_at is not None else job.arguments.keys() & {"reason"}
    arguments = job.arguments | redact_json({name: job.arguments[name] for name in names}, finder)
    return values if arguments == job.arguments else {**values, "arguments": arguments}


def _requests(session: Session, sought: Sought) -> RedactedRows:
    for request in session.scalars(select(ErasureRequestRow).order_by(ErasureRequestRow.id)):
        said = TextOrigin(frozenset(request.fact_ids), at=request.at)
        if values := redacted_columns(request, content_of(ErasureRequestRow), sought.finder(said)):
            yield request, values


def _questions(session: Session, sought: Sought) -> RedactedRows:
    return kept_questions.redact_kept_questions(session, sought.finder)


def _question_outcomes(session: Session, sought: Sought) -> RedactedRows:
    return kept_questions.redact_kept_outcomes(session, sought.finder, sought.fact_ids)


def _feedback(session: Session, sought: Sought) -> RedactedRows:
    said = or_(
        FeedbackRow.comment.is_not(None), FeedbackRow.value.is_not(None), FeedbackRow.on_behalf_of != ""
    )
    rows = session.scalars(
        select(FeedbackRow).where(said).order_by(FeedbackRow.id).execution_options(populate_existing=True)
    ).all()
    splices = splices_of(session, [row.generation_id for row in rows])
    for row in rows:
        facts = frozenset(splice.fact_id for splice in splices.get(row.generation_id, ()))
        finder = sought.finder(TextOrigin(facts, at=row.at))
        if values := redacted_columns(row, content_of(FeedbackRow), finder):
            if "on_behalf_of" in values:  # two people whose names come out the same have a thumb each
                values["on_behalf_of"] += f" {row.id}"
            yield row, values


_OTHERS = (
    _runs,
    _jobs,
    _requests,
    _questions,
    _question_outcomes,
    _feedback,
)  # in the order of the fields of `Quoting`


# Redacts stored outputs that say an erased fact: where it was spliced, said otherwise, or quoted with its
# document.
#
# The functions take the session first and never commit.

AT_ONCE = 500


class SplicedLookup(Protocol):
    """A splice of an output: one that is stored (a row) or about to be (a record of a higher floor)."""

    @property
    def output_start(self) -> int: ...
    @property
    def output_end(self) -> int: ...
    @property
    def fact_id(self) -> int | None: ...


def without_quotations(
    prompt: str,
    output: str,
    splices: Sequence[SplicedLookup],
    erased: Collection[int],
    finder: Finder,
    marks: Sequence[Span] = (),
) -> tuple[str, str]:
    """Gives prompt and output with the splices of erased facts, repetitions of these and the finder's spans redacted.

    A splice of another fact stays, even where it says the same. `marks` are spans of the output that its document,
    which it quotes, says no more.
    """
    own = [(s.output_start, s.output_end) for s in splices if s.fact_id in erased]
    others = [(s.output_start, s.output_end) for s in splices if s.fact_id not in erased]
    spliced = Phrases(output[start:end].replace(MARK, " ") for start, end in own)
    in_prompt, in_output = ((*finder.spans(text), *spliced.spans(text)) for text in (prompt, output))
    return blank_out(prompt, in_prompt), blank_out(output, (*own, *split_apart((*in_output, *marks), others)))


def redact_quoting_outputs(session: Session, sought: Sought, seq: int) -> Iterator[int]:
    """Redacts the outputs that say one of these texts, as part of change `seq`, and yields their ids."""
    asked: list[int] = []
    said: list[int] = []
    for row, values in quoting_facts(session, sought):
        (said if row.prompt == values["prompt"] else asked).append(row.id)
        row.prompt, row.output, row.redacted_seq = values["prompt"], values["output"], seq
        yield row.id
    session.flush()
    _drop_queries(session, sought.fact_ids, asked, said)


def _drop_queries(session: Session, fact_ids: Collection[int], asked: list[int], said: list[int]) -> None:
    """Removes the queries by which these facts were spliced. All lookups of an answer have the one of its question.

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
        of_output == func.any(asked),
        and_(of_output == func.any(said), AttributionRow.outcome != "hit"),
    )
    session.execute(update(AttributionRow).where(gone, AttributionRow.query.is_not(None)).values(query=None))


def quoting_facts(session: Session, sought: Sought) -> RedactedRows:
    """Yields the outputs that say one of these texts, with prompt and output redacted. Changes nothing."""
    spliced = select(AttributionRow.generation_id).where(
        AttributionRow.fact_id == func.any(list(sought.fact_ids))
    )
    statement = (
        select(GenerationRow)
        .where(or_(GenerationRow.id.in_(spliced), sought.outputs(), with_marks()))
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
            marks = _marks(row, hits, stretches.get(row.id))
            prompt, output = without_quotations(
                row.prompt, row.output, hits, sought.fact_ids, sought.finder(said), marks
            )
            if (prompt, output) != (row.prompt, row.output):
                sought.met.update(said.fact_ids.intersection(sought.fact_ids))
                yield row, {"prompt": prompt, "output": output}
        last, found = (page[-1].id, True) if page else (last, False)


def _marks(row: GenerationRow, hits: Sequence[Any], stretch: str | None) -> list[Span]:
    """Gives the spans of an output that are redacted in the document that it quotes (None: it quotes none)."""
    if stretch is None or row.quoted_start is None or row.quoted_end is None:
        return []
    return marked(len(row.output), (row.quoted_start, row.quoted_end), hits, stretch)


def splices_of(session: Session, generation_ids: list[int]) -> dict[int, list[Any]]:
    """Gives by output the splices that said a fact, with where they stand in the output and in what it quotes."""
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
