"""The tables of questions with expected values, and of the runs that asked them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, Float, ForeignKey, Identity, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from colmlm.kb.tables.declarative import Content, Contents, Name, TableRow, Word

ways_to_ask = ("read", "paper", "words", "reader")
question_outcomes = ("right", "wrong", "abstained")


class QuestionSetRow(TableRow):
    """A named set of questions, whose answers are looked for in a corpus (NULL: in all of them)."""

    __tablename__ = "question_set"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    corpus: Mapped[Name | None]
    actor: Mapped[Name]
    at: Mapped[datetime] = mapped_column(server_default=func.now())


class QuestionRow(TableRow):
    """A question of a set, with the values that count as right (none: nothing should answer).

    `fact_ids` are the facts of the output that it was taken from; `at` is when its texts were given last.
    """

    __tablename__ = "question"
    __table_args__ = (Index("question_of_set_idx", "set_id", "id"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    set_id: Mapped[int] = mapped_column(ForeignKey("question_set.id", ondelete="CASCADE"))
    text: Mapped[Content]
    expected: Mapped[Contents]
    fact_ids: Mapped[list[int]]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class QuestionRunRow(TableRow):
    """One asking of all questions of a set, between changes `first_seq` and `seq` of the log."""

    __tablename__ = "question_run"
    __table_args__ = (
        CheckConstraint(f"how IN {ways_to_ask}", name="how"),
        Index("question_run_of_set_idx", "set_id", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    set_id: Mapped[int] = mapped_column(ForeignKey("question_set.id", ondelete="CASCADE"))
    how: Mapped[Word]
    threshold: Mapped[float] = mapped_column(Float)
    keyset_id: Mapped[int | None]
    checkpoint_id: Mapped[Name | None]
    reader: Mapped[Name | None]
    first_seq: Mapped[int]
    seq: Mapped[int]
    num_asked: Mapped[int] = mapped_column(Integer)
    num_right: Mapped[int] = mapped_column(Integer)
    num_wrong: Mapped[int] = mapped_column(Integer)
    num_abstained: Mapped[int] = mapped_column(Integer)
    num_skipped: Mapped[int] = mapped_column(Integer)
    actor: Mapped[Name]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    seconds: Mapped[float] = mapped_column(Float)
    accepted_only: Mapped[bool] = mapped_column(server_default=text("false"))


class QuestionOutcomeRow(TableRow):
    """What came of one question in a run, with its texts as they were asked.

    `fact_ids` are the facts that the value says, or the deleted ones that it would have said. `seq` is the last change
    before the run.
    """

    __tablename__ = "question_outcome"
    __table_args__ = (
        CheckConstraint(f"outcome IN {question_outcomes}", name="outcome"),
        Index("question_outcome_of_run_idx", "run_id", "id"),
    )

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("question_run.id", ondelete="CASCADE"))
    question_id: Mapped[int] = mapped_column(index=True)
    question: Mapped[Content]
    expected: Mapped[Contents]
    value: Mapped[Content | None]
    fact_id: Mapped[int | None]
    fact_ids: Mapped[list[int]]
    score: Mapped[float] = mapped_column(Float)
    outcome: Mapped[Word]
    reason: Mapped[Word | None]
    seq: Mapped[int]
