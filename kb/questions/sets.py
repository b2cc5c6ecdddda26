"""Question sets of a store: adds to them, shows them, asks them and compares runs. A verb is one transaction.

It also reads files of questions, and takes a question from a stored output."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, Unpack

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuestions, InvalidValue, refusals
from colmlm.kb.facts import suppression
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.log import audit
from colmlm.kb.log.audit import check_text, mark_change
from colmlm.kb.lookup.options import FilterOptions
from colmlm.kb.questions import asking, reading
from colmlm.kb.questions.asking import Asker, OnAsked, expected_values, is_askable
from colmlm.kb.questions.reading import MAX_ID, check_items, edit_set, open_set, put_set, remove_questions
from colmlm.kb.questions.records import (
    AskedItem,
    ChangedItem,
    DraftQuestion,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
    TakenQuestion,
)
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import AttributionRow, ChangeRow, GenerationRow, answer_modes
from colmlm.kb.texts.characters import is_blank

LISTED = 100


@dataclass(frozen=True, slots=True)
class QuestionSets:
    """The sets of questions of a store."""

    store: Store

    def all(self) -> list[KeptSet]:
        """List the sets by name."""
        with self.store.sessions() as session:
            return reading.list_sets(session)

    def show(self, name: str) -> KeptSet:
        """Give one set without its questions. Raises `QuestionSetNotFound`."""
        with self.store.sessions() as session:
            return reading.list_sets(session, name)[0]

    def questions(self, name: str, after: int = 0, limit: int = LISTED) -> list[KeptQuestion]:
        """List the questions of a set whose ids are greater than `after`."""
        with self.store.sessions() as session:
            return reading.questions_of_set(session, reading.set_row(session, name).id, after, limit)

    def askable(self, name: str) -> list[DraftQuestion]:
        """Give the questions of a set that can still be asked, without their erased values."""
        with self.store.sessions() as session:
            kept = reading.questions_of_set(session, reading.set_row(session, name).id)
        return [DraftQuestion(one.question, expected_values(one)) for one in kept if is_askable(one)]

    @retry_on_contention
    def add(
        self, name: str, questions: Sequence[DraftQuestion], *, corpus: str | None = None, actor: str
    ) -> KeptSet:
        """Add questions to a set, which is made where it is missing. A question that it has already gets these values.

        Raises `InvalidQuestions`, `InvalidValue` for a name, and `CorpusNotFound`.
        """
        audit.check_name("actor", actor)
        check_items(questions)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            put_set(session, open_set(session, name, corpus, actor).id, questions)
            return _read_marked_set(session, name)

    @retry_on_contention
    def take(self, name: str, generation_id: int, *, actor: str, **said: Unpack[TakenQuestion]) -> KeptSet:
        """Add the question of a stored output, with the output's value as the expected one unless others are given."""
        audit.check_name("actor", actor)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            draft, fact_ids = question_of_output(session, generation_id)
            question, expected = said.get("question"), said.get("expected")
            draft = replace(
                draft,
                question=draft.question if question is None else question,
                expected=draft.expected if expected is None else tuple(expected),
            )
            check_items([draft])
            put_set(session, open_set(session, name, None, actor).id, [draft], fact_ids)
            return _read_marked_set(session, name)

    def draft_of_output(self, generation_id: int) -> DraftQuestion:
        """Give the question that `take` would add from an output."""
        with self.store.sessions() as session:
            return question_of_output(session, generation_id)[0]

    @retry_on_contention
    def edit(self, name: str, question_id: int, question: str, expected: Sequence[str]) -> KeptSet:
        """Give a question another text and other values. Raises `QuestionNotFound`."""
        draft = DraftQuestion(question, tuple(expected))
        check_items([draft])
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            edit_set(session, reading.set_row(session, name, lock=True).id, question_id, draft)
            return _read_marked_set(session, name)

    @retry_on_contention
    def remove(self, name: str, question_ids: Sequence[int] | None = None) -> KeptSet:
        """Remove these questions, or without any list the whole set with its runs; give the set as it was.

        Raises `QuestionNotFound`, and `InvalidValue` for an empty list.
        """
        with self.store.sessions.begin() as session:
            kept = reading.set_row(session, name, lock=True)
            before = _read_marked_set(session, name)
            if question_ids is None:
                session.delete(kept)
            else:
                remove_questions(session, kept.id, question_ids)
            return before

    def run(
        self, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None, *, actor: str
    ) -> QuestionRun:
        """Ask every question, and store what came of it as a run. It takes one transaction at the end."""
        return asking.run_set(self.store, name, asker, on_asked, actor=actor)

    def runs(self, name: str, before: int | None = None, limit: int = LISTED) -> list[QuestionRun]:
        """List the runs of a set, newest first: those older than run `before` (None: all)."""
        with self.store.sessions() as session:
            return reading.list_runs(session, name, before, limit)

    def show_run(self, name: str, run_id: int) -> QuestionRun:
        with self.store.sessions() as session:
            return reading.run_record(session, run_id, name)

    def items(self, name: str, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]:
        """List what came of each question of a run, without the first `after`. Raises `QuestionRunNotFound`."""
        with self.store.sessions() as session:
            return reading.list_items(session, reading.run_record(session, run_id, name).run_id, after, limit)

    def compare(self, name: str, before: int | None = None, after: int | None = None) -> RunComparison:
        """Compare two runs of a set, by default the last two."""
        with self.store.sessions() as session:
            return compare_runs(session, name, before, after)


def _read_marked_set(session: Session, name: str) -> KeptSet:
    mark_change(
        session, audit.head_seq(session)
    )  # so that a repeated request with one idempotency key writes once
    return reading.list_sets(session, name)[0]


# Compares two runs of a set: which questions came out otherwise, and what the log says of the time between.

SETTINGS = ("how", "threshold", "keyset_id", "checkpoint_id", "reader", *FilterOptions.__annotations__)
MOST_SEQS = 1_000


def compare_runs(session: Session, name: str, before_id: int | None, after_id: int | None) -> RunComparison:
    """Compare two runs of a set, by default the last two, with the changes since the first one began.

    Raises `InvalidValue` where there are no two, and `QuestionRunNotFound`.
    """
    before_id, after_id = _runs_to_compare(session, name, before_id, after_id)
    before, after = (reading.run_record(session, run_id, name) for run_id in (before_id, after_id))
    was, now = (
        {one.question_id: one for one in reading.list_items(session, run_id)}
        for run_id in (before_id, after_id)
    )
    ids = sorted(was.keys() | now.keys())
    changed = [(was.get(one), now.get(one)) for one in ids if _result(was.get(one)) != _result(now.get(one))]
    first, last = sorted((before, after), key=lambda run: run.run_id)
    between = (ChangeRow.seq > first.first_seq) & (ChangeRow.seq <= last.seq)
    kinds = select(ChangeRow.kind, func.count()).where(between).group_by(ChangeRow.kind)
    used = {fact_id for one in chain.from_iterable(changed) if one for fact_id in one.fact_ids}
    touching = select(ChangeRow.seq, ChangeRow.fact_ids).where(
        between, ChangeRow.fact_ids.op("&&")(sorted(used))
    )
    changes = session.execute(touching.order_by(ChangeRow.seq).limit(MOST_SEQS)).all() if used else []
    touched = [(change.seq, frozenset(change.fact_ids)) for change in changes]
    return RunComparison(
        before=before,
        after=after,
        same=len(ids) - len(changed),
        items=tuple(ChangedItem(one, other, _seqs(one, other, touched)) for one, other in changed),
        first_seq=first.first_seq,
        last_seq=last.seq,
        changes=dict(session.execute(kinds.order_by(ChangeRow.kind)).all()),
        settings=tuple(one for one in SETTINGS if getattr(before, one) != getattr(after, one)),
    )


def _runs_to_compare(session: Session, name: str, before: int | None, after: int | None) -> tuple[int, int]:
    """Fill in the runs that were not named: the newest, and the one before the other."""
    if after is None:
        after = next((run.run_id for run in reading.list_runs(session, name, None, 1)), None)
    if before is None and after is not None:
        before = next((run.run_id for run in reading.list_runs(session, name, after, 1)), None)
    if before is None or after is None:
        raise InvalidValue(
            "comparison", f"the set {name!r} does not have two runs yet. Run `colmlm questions run`"
        )
    return before, after


def _result(item: AskedItem | None) -> tuple[object, ...] | None:
    return None if item is None else (item.value, item.outcome, item.reason)


def _seqs(
    one: AskedItem | None, other: AskedItem | None, touched: Collection[tuple[int, frozenset[int]]]
) -> tuple[int, ...]:
    used = {fact_id for item in (one, other) if item for fact_id in item.fact_ids}
    return tuple(seq for seq, fact_ids in touched if used & fact_ids)


# Takes a question from a stored output: what was asked, with what was said as the expected value.

_BEFORE, _BEHIND = "Question:", "Answer:"  # of a prompt that asks a question


def question_of_output(session: Session, generation_id: int) -> tuple[DraftQuestion, tuple[int, ...]]:
    """Give the question and value of an output, and the facts that said it.

    Without an answer nothing is expected. Raises `GenerationNotFound`, and `InvalidQuestions` where a part was erased.
    """
    row = session.get(GenerationRow, generation_id) if 0 < generation_id <= MAX_ID else None
    if row is None:
        raise refusals.generation_not_found(generation_id)
    hits = session.scalars(
        select(AttributionRow)
        .where(AttributionRow.generation_id == generation_id, AttributionRow.outcome == "hit")
        .order_by(AttributionRow.ordinal)
    ).all()
    if row.mode in answer_modes:
        said = row.output
    else:
        hits = hits[:1]
        said = row.output[hits[0].output_start : hits[0].output_end] if hits else ""
    question = row.prompt.strip().removeprefix(_BEFORE).removesuffix(_BEHIND).strip()
    if MARK in question or MARK in said:
        raise InvalidQuestions(
            f"output {generation_id} contains text that was erased later. Run `colmlm questions add` instead"
        )
    facts = (hit.fact_id for hit in hits if hit.fact_id is not None)
    return DraftQuestion(question, (said.strip(),) if said.strip() else ()), tuple(facts)


# Files of questions with the values that answer them: CSV with the columns question and value, or JSON Lines with the
# same fields, where `value` may be a list. One that nothing answers has an empty value. Values of the same question add
# up. The values may also be called expected, as a run's items call them.

MAX_QUESTION = 2_000  # characters
_VALUES = "value", "expected"


def questions_of_file(file: Path) -> list[DraftQuestion]:
    """Read the questions of a file, CSV by its name or JSON Lines. Raises `InvalidQuestions`, which names the line."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        try:
            return _read_drafts(_read_rows(lines) if file.suffix.lower() == ".csv" else _read_objects(lines))
        except UnicodeDecodeError as error:
            raise InvalidQuestions("the file is not UTF-8. Save it as UTF-8") from error


def questions_of_text(text: str) -> list[DraftQuestion]:
    """Read pasted questions: JSON Lines where they begin with a brace, else CSV. Raises `InvalidQuestions`."""
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    return _read_drafts(_read_objects(lines) if text.lstrip().startswith("{") else _read_rows(lines))


def _read_drafts(records: Iterator[tuple[int, Mapping[str, Any]]]) -> list[DraftQuestion]:
    values: dict[str, list[str]] = {}
    for number, record in records:
        question, said = _question(number, record)
        values.setdefault(question, []).extend(said)
    if not values:
        raise InvalidQuestions(
            "there are none. Write one question on each line, below the column names in CSV"
        )
    return [DraftQuestion(question, tuple(dict.fromkeys(said))) for question, said in values.items()]


def _question(number: int, record: Mapping[str, Any]) -> tuple[str, list[str]]:
    question, value = record.get("question"), record.get("value", record.get("expected"))
    said = value if isinstance(value, list) else [value] if value is not None else []
    is_named = not record.keys().isdisjoint(_VALUES) and all(isinstance(one, str) for one in said)
    if not isinstance(question, str) or is_blank(question) or not is_named:
        raise InvalidQuestions(
            f"line {number} has no 'question' with a 'value' that is text, a list of texts or empty"
        )
    if len(question) > MAX_QUESTION:
        raise InvalidQuestions(f"line {number} has more than {MAX_QUESTION:,} characters")
    try:
        for name, text in (("question", question), *(("value", one) for one in said)):
            check_text(name, text)
    except InvalidValue as error:
        raise InvalidQuestions(f"line {number} has an invalid {error.field}: {error.cause}") from error
    return question, [one for one in said if not is_blank(one)]


def _read_rows(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(lines, strict=True)
    try:
        for row in rows:
            if None in row or None in row.values():
                raise InvalidQuestions(f"line {rows.line_num} has more or fewer fields than the first line")
            yield rows.line_num, row
    except csv.Error as error:
        raise InvalidQuestions(
            f"the text after line {rows.line_num} is not CSV ({error}). Close its quotes, or shorten its fields"
        ) from error


def _read_objects(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidQuestions(f"line {number} is not JSON") from error
            yield number, record if isinstance(record, dict) else {}
