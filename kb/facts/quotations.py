"""Quotations: finds and redacts stored texts outside the facts that repeat what an erased fact said.

The functions take the session first and never commit. Each column of the tables declares what an erasure does with it
(`kb.tables.declarative`); what is redacted here are the columns with content of these tables:

- generation: where the fact was spliced, wherever else they say it, and where the document that an output quotes is
  redacted (`kb.facts.quoted`). Its attributions lose their queries: of an answer with any of its splices, with a
  redacted prompt, and where nothing was found in a redacted output;
- forget_run: in a run that names the fact also a selector's text or question that is part of what the fact said;
- job: of a job that is not over only the reason among its arguments, as the others are its task;
- erasure_request, question, feedback;
- question_outcome: the value also where it is a part of what an erased fact said.

Elsewhere `kb.facts.redaction` redacts documents and `kb.erasure.verbs` the facts, and drops their past and the bodies
of kept answers. The words of sentences go with the statement that redacts their text. The log cannot be altered: in the
change of an erasure the reason and on whose behalf it was made are redacted before they are stored.

A writer of one of these tables holds erasures off (`kb.facts.suppression`) and, with the functions here, redacts
what was erased before. So an erasure sees everything stored before it, and everything stored later sees the
erasure. fsck checks the same rows by digests, and erasing again redacts what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.facts import kept_questions, quoting_outputs
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.gone import Gone, Sought
from colmlm.kb.facts.kept_questions import RedactedRows
from colmlm.kb.facts.redaction import MARK, redact_json, redacted_columns
from colmlm.kb.tables import ErasureRequestRow, FactRow, FeedbackRow, ForgetRunRow, JobRow, content_of
from colmlm.kb.texts.wording import Finder

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


def find(session: Session, sought: Sought) -> Quoting:
    """Finds the rows that say one of these texts. Changes nothing."""
    return Quoting(
        *(tuple(row.id for row, _ in rows(session, sought)) for rows in (quoting_outputs.quoting, *_OTHERS))
    )


def still_said(session: Session) -> set[int]:
    """Gives the erased facts that some row still says."""
    gone = Gone.read(session)
    find(session, gone)
    return gone.met


def redact(session: Session, sought: Sought, seq: int) -> Quoting:
    """Redacts the rows that say one of these texts, as part of change `seq`, and gives their ids."""
    return Quoting(
        tuple(quoting_outputs.redact(session, sought, seq)),
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
    return kept_questions.questions(session, sought.finder)


def _question_outcomes(session: Session, sought: Sought) -> RedactedRows:
    return kept_questions.outcomes(session, sought.finder, sought.fact_ids)


def _feedback(session: Session, sought: Sought) -> RedactedRows:
    said = or_(
        FeedbackRow.comment.is_not(None), FeedbackRow.value.is_not(None), FeedbackRow.on_behalf_of != ""
    )
    rows = session.scalars(
        select(FeedbackRow).where(said).order_by(FeedbackRow.id).execution_options(populate_existing=True)
    ).all()
    splices = quoting_outputs.splices_of(session, [row.generation_id for row in rows])
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
