"""Asking: asks all questions of a set, and stores what came of each as a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidQuestions
from colmlm.kb.facts import kept_questions, suppression
from colmlm.kb.keys.keysets import active_keyset_id, checkpoint_of
from colmlm.kb.log import audit
from colmlm.kb.log.origin import signed
from colmlm.kb.questions import reading
from colmlm.kb.questions.hearing import Asker
from colmlm.kb.questions.judging import is_askable, judged
from colmlm.kb.questions.records import AskedItem, QuestionRun
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store
from colmlm.kb.tables import QuestionOutcomeRow, QuestionRunRow

KEPT_RUNS = 50  # of a set; the oldest go when one more is stored

OnAsked = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class AskedSet:
    """The questions of a set as they were asked. `first_seq` is the last change of the log before the first one."""

    set_id: int
    first_seq: int
    threshold: float
    items: tuple[AskedItem, ...]
    skipped: int

    def share(self, result: str) -> float:
        """Gives the share of the questions with this outcome."""
        return sum(item.outcome == result for item in self.items) / len(self.items)


def ask_set(store: Store, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None) -> AskedSet:
    """Asks every question of a set of which enough is left. Raises `QuestionSetNotFound`, and `InvalidQuestions` where
    there is none.
    """
    with store.sessions() as session:
        kept = reading.set_row(session, name)
        first_seq, every = audit.head_seq(session), reading.questions_of(session, kept.id)
    asked = [one for one in every if is_askable(one)]
    if not asked:
        raise InvalidQuestions(f"the set {name!r} has none that can be asked; add some")
    items: list[AskedItem] = []
    threshold = 0.0
    for number, one in enumerate(asked, 1):
        heard = asker.ask(one.question)
        threshold = heard.threshold
        items.append(judged(store, kept.corpus, one, heard, asker))
        on_asked(number, len(asked))
    return AskedSet(kept.id, first_seq, threshold, tuple(items), len(every) - len(asked))


def run(
    store: Store, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None, *, actor: str
) -> QuestionRun:
    """Asks a set as `ask_set` does, and stores the run. What was erased meanwhile is redacted in it."""
    audit.check_name("actor", actor)
    begun = time.monotonic()
    asked = ask_set(store, name, asker, on_asked)
    run_id = _stored(store, name, asked, asker, (signed(actor).actor, time.monotonic() - begun))
    with store.sessions() as session:
        return reading.run_record(session, run_id)


@tried_again
def _stored(store: Store, name: str, asked: AskedSet, asker: Asker, about: tuple[str, float]) -> int:
    actor, seconds = about
    with store.sessions.begin() as session:
        suppression.hold_off_erasure(session)
        kept = reading.set_row(session, name, lock=True)
        counts = Counter(item.outcome for item in asked.items)
        keyset_id = active_keyset_id(session)
        row = QuestionRunRow(
            set_id=kept.id, how=asker.way, threshold=asked.threshold, keyset_id=keyset_id,
            checkpoint_id=None if keyset_id is None else checkpoint_of(session, keyset_id).checkpoint_id,
            reader=asker.reader, first_seq=asked.first_seq, seq=audit.head_seq(session),
            num_asked=len(asked.items), num_right=counts["right"], num_wrong=counts["wrong"],
            num_abstained=counts["abstained"], num_skipped=asked.skipped, actor=actor, seconds=round(seconds, 2),
            accepted_only=asker.accepted_only,
        )  # fmt: skip
        session.add(row)
        session.flush()
        _add_outcomes(session, row, asked.items)
        _drop_old(session, kept.id)
        return row.id


def _add_outcomes(session: Session, run: QuestionRunRow, items: Sequence[AskedItem]) -> None:
    rows = [
        QuestionOutcomeRow(
            run_id=run.id, question_id=item.question_id, question=item.question, expected=list(item.expected),
            value=item.value, fact_id=item.fact_id, fact_ids=list(item.fact_ids), score=item.score,
            outcome=item.outcome, reason=item.reason, seq=run.first_seq,
        )
        for item in items
    ]  # fmt: skip
    kept_questions.redact_outcomes(session, rows)
    session.add_all(rows)
    session.flush()


def _drop_old(session: Session, set_id: int) -> None:
    newest = select(QuestionRunRow.id).where(QuestionRunRow.set_id == set_id)
    newest = newest.order_by(QuestionRunRow.id.desc()).limit(KEPT_RUNS)
    old = delete(QuestionRunRow).where(QuestionRunRow.set_id == set_id, QuestionRunRow.id.not_in(newest))
    session.execute(old)
