"""Question sets of a store: adds to them, shows them, asks them and compares runs. A verb is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from sqlalchemy.orm import Session

from colmlm.kb.facts import suppression
from colmlm.kb.log import audit
from colmlm.kb.log.origin import mark
from colmlm.kb.questions import asking, comparing, reading, taking, writing
from colmlm.kb.questions.asking import OnAsked
from colmlm.kb.questions.hearing import Asker
from colmlm.kb.questions.judging import is_askable, wanted
from colmlm.kb.questions.records import (
    AskedItem,
    DraftQuestion,
    KeptQuestion,
    KeptSet,
    QuestionRun,
    RunComparison,
    TakenQuestion,
)
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store

LISTED = 100


@dataclass(frozen=True, slots=True)
class QuestionSets:
    """The sets of questions of a store."""

    store: Store

    def all(self) -> list[KeptSet]:
        """Lists the sets by name."""
        with self.store.sessions() as session:
            return reading.sets(session)

    def show(self, name: str) -> KeptSet:
        """Gives one set without its questions. Raises `QuestionSetNotFound`."""
        with self.store.sessions() as session:
            return reading.sets(session, name)[0]

    def questions(self, name: str, after: int = 0, limit: int = LISTED) -> list[KeptQuestion]:
        """Lists the questions of a set whose ids are greater than `after`."""
        with self.store.sessions() as session:
            return reading.questions_of(session, reading.set_row(session, name).id, after, limit)

    def askable(self, name: str) -> list[DraftQuestion]:
        """Gives all questions of a set of which enough is left to be asked, without the values that were erased."""
        with self.store.sessions() as session:
            kept = reading.questions_of(session, reading.set_row(session, name).id)
        return [DraftQuestion(one.question, wanted(one)) for one in kept if is_askable(one)]

    @tried_again
    def add(
        self, name: str, questions: Sequence[DraftQuestion], *, corpus: str | None = None, actor: str
    ) -> KeptSet:
        """Adds questions to a set, which is made where there is none. A question that is there gets these values.

        Raises `InvalidQuestions`, `InvalidValue` for a name, and `CorpusNotFound`.
        """
        audit.check_name("actor", actor)
        writing.check(questions)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            writing.put(session, writing.opened(session, name, corpus, actor).id, questions)
            return _marked(session, name)

    @tried_again
    def take(self, name: str, generation_id: int, *, actor: str, **said: Unpack[TakenQuestion]) -> KeptSet:
        """Adds the question of a stored output, with what was said as the expected value unless other is given."""
        audit.check_name("actor", actor)
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            draft, fact_ids = taking.taken(session, generation_id)
            question, expected = said.get("question"), said.get("expected")
            draft = replace(
                draft,
                question=draft.question if question is None else question,
                expected=draft.expected if expected is None else tuple(expected),
            )
            writing.check([draft])
            writing.put(session, writing.opened(session, name, None, actor).id, [draft], fact_ids)
            return _marked(session, name)

    def taken(self, generation_id: int) -> DraftQuestion:
        """Gives the question that `take` would add of an output."""
        with self.store.sessions() as session:
            return taking.taken(session, generation_id)[0]

    @tried_again
    def edit(self, name: str, question_id: int, question: str, expected: Sequence[str]) -> KeptSet:
        """Gives a question another text and other values. Raises `QuestionNotFound`."""
        draft = DraftQuestion(question, tuple(expected))
        writing.check([draft])
        with self.store.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            writing.edit(session, reading.set_row(session, name, lock=True).id, question_id, draft)
            return _marked(session, name)

    @tried_again
    def remove(self, name: str, question_ids: Sequence[int] | None = None) -> KeptSet:
        """Removes these questions, or without any list the whole set with its runs; gives the set as it was.

        Raises `QuestionNotFound`, and `InvalidValue` for an empty list.
        """
        with self.store.sessions.begin() as session:
            kept = reading.set_row(session, name, lock=True)
            before = _marked(session, name)
            if question_ids is None:
                session.delete(kept)
            else:
                writing.remove(session, kept.id, question_ids)
            return before

    def run(
        self, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None, *, actor: str
    ) -> QuestionRun:
        """Asks every question, and stores what came of it as a run. It takes one transaction at the end."""
        return asking.run(self.store, name, asker, on_asked, actor=actor)

    def runs(self, name: str, before: int | None = None, limit: int = LISTED) -> list[QuestionRun]:
        """Lists the runs of a set, newest first: those older than run `before` (None: all)."""
        with self.store.sessions() as session:
            return reading.runs(session, name, before, limit)

    def show_run(self, name: str, run_id: int) -> QuestionRun:
        with self.store.sessions() as session:
            return reading.run_record(session, run_id, name)

    def items(self, name: str, run_id: int, after: int = 0, limit: int | None = None) -> list[AskedItem]:
        """Gives what came of each question of a run, past the first `after`. Raises `QuestionRunNotFound`."""
        with self.store.sessions() as session:
            return reading.items(session, reading.run_record(session, run_id, name).run_id, after, limit)

    def compare(self, name: str, before: int | None = None, after: int | None = None) -> RunComparison:
        """Compares two runs of a set, by default the last two."""
        with self.store.sessions() as session:
            return comparing.compare(session, name, before, after)


def _marked(session: Session, name: str) -> KeptSet:
    mark(session, audit.head_seq(session))  # so that a repeated request with one idempotency key writes once
    return reading.sets(session, name)[0]
