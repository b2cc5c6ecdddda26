"""Asking: asks all questions of a set, and stores what came of each as a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.calibration import ARTICLES, RIGHT, outcome_of_answer
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.answers.records import SaidPart
from colmlm.kb.answers.windows import read_windows
from colmlm.kb.errors import InvalidQuestions
from colmlm.kb.facts import suppression
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.facts.search import SoughtText
from colmlm.kb.keys.keysets import active_keyset_id, checkpoint_of
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.log import audit
from colmlm.kb.log.audit import signature_of
from colmlm.kb.lookup.options import READER, FilterOptions
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.questions import reading
from colmlm.kb.questions.records import (
    ANOTHER,
    BELOW,
    CUT,
    NOT_FOUND,
    NOT_HELD,
    WITHHELD,
    AskedItem,
    KeptQuestion,
    QuestionRun,
    Way,
)
from colmlm.kb.removal import quotations
from colmlm.kb.store.store import Store
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import (
    DocumentRow,
    FactRow,
    FactVersionRow,
    QuestionOutcomeRow,
    QuestionRunRow,
    SentenceRow,
)

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
        """Give the share of the questions with this outcome."""
        return sum(item.outcome == result for item in self.items) / len(self.items)


def ask_set(store: Store, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None) -> AskedSet:
    """Ask the askable questions of a set. Raises `QuestionSetNotFound`, or `InvalidQuestions` where there is none."""
    with store.sessions() as session:
        kept = reading.set_row(session, name)
        first_seq, every = audit.head_seq(session), reading.questions_of_set(session, kept.id)
    asked = [one for one in every if is_askable(one)]
    if not asked:
        raise InvalidQuestions(
            f"the set {name!r} has no question that can be asked. Run `colmlm questions add`"
        )
    items: list[AskedItem] = []
    threshold = 0.0
    for number, one in enumerate(asked, 1):
        heard = asker.ask(one.question)
        threshold = heard.threshold
        items.append(judge_answers(store, kept.corpus, one, heard, asker))
        on_asked(number, len(asked))
    return AskedSet(kept.id, first_seq, threshold, tuple(items), len(every) - len(asked))


def run_set(
    store: Store, name: str, asker: Asker, on_asked: OnAsked = lambda done, total: None, *, actor: str
) -> QuestionRun:
    """Ask a set as `ask_set` does, and store the run; what was erased meanwhile is redacted in it."""
    audit.check_name("actor", actor)
    begun = time.monotonic()
    asked = ask_set(store, name, asker, on_asked)
    run_id = _store_run(store, name, asked, asker, (signature_of(actor).actor, time.monotonic() - begun))
    with store.sessions() as session:
        return reading.run_record(session, run_id)


@retry_on_contention
def _store_run(store: Store, name: str, asked: AskedSet, asker: Asker, about: tuple[str, float]) -> int:
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
            **asker.only,
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
    quotations.redact_outcomes(session, rows)
    session.add_all(rows)
    session.flush()


def _drop_old(session: Session, set_id: int) -> None:
    newest = select(QuestionRunRow.id).where(QuestionRunRow.set_id == set_id)
    newest = newest.order_by(QuestionRunRow.id.desc()).limit(KEPT_RUNS)
    old = delete(QuestionRunRow).where(QuestionRunRow.set_id == set_id, QuestionRunRow.id.not_in(newest))
    session.execute(old)


# Judging: says whether what was heard is right, and else why not.
#
# Right is what the calibration of answers takes for right (`kb.answers.calibration`): the value is an
# expected one, or holds one. The reasons are tried in this order, and each is decided by what is stored:
#
# - *withheld*: a deleted fact would have said it, so that nothing was said; - *below the threshold*: the
# likeliest words were right, and not likely enough; - *cut value*: the likeliest words are a part of an
# expected value; - *another answer*: a text that the question was looked for in holds an expected value, and
# other words were likelier; - *not found*: none of these texts holds one, but a live fact or document of the
# corpus does; - *no fact holds it*: none does.

MOST = 1000  # values, and sentences, with all words of an expected value, that are compared with it


def expected_values(kept: KeptQuestion) -> tuple[str, ...]:
    """Give the expected values of a kept question of which nothing was erased."""
    return tuple(value for value in kept.expected if MARK not in value)


def is_askable(kept: KeptQuestion) -> bool:
    """Say whether a question can still be asked: its text and, if it has any, an expected value are not erased."""
    return MARK not in kept.question and (bool(expected_values(kept)) or not kept.expected)


def judge_answers(
    store: Store, corpus: str | None, kept: KeptQuestion, heard: HeardAnswer, asker: Asker
) -> AskedItem:
    """Judge the answer to a question whose expected answer is in this corpus (None: in any)."""
    result, reason = _outcome(kept, heard), None
    if result != "right":
        likeliest = _reason_by_likeliest(heard, expected_values(kept)) if kept.expected else ANOTHER
        reason = likeliest or _reason_by_texts(store, corpus, kept, asker)
    return AskedItem(
        question=kept.question,
        expected=kept.expected,
        value=heard.value,
        fact_id=heard.fact_id,
        outcome=result,
        reason=reason,
        score=heard.score,
        question_id=kept.question_id,
        fact_ids=heard.fact_ids if heard.value is not None or heard.withheld else (),
    )


def _outcome(kept: KeptQuestion, heard: HeardAnswer) -> str:
    if not kept.expected:
        return "right" if heard.value is None else "wrong"
    if outcome_of_answer(heard.value, expected_values(kept)) in RIGHT:
        return "right"
    return "abstained" if heard.value is None else "wrong"


def _reason_by_likeliest(heard: HeardAnswer, wanted: Sequence[str]) -> str | None:
    """Give the reason (of `REASONS`) for a wrong or missing answer that the likeliest value shows; None without one."""
    if heard.withheld:
        return WITHHELD
    best = outcome_of_answer(heard.best, wanted)
    if best in RIGHT:
        return BELOW
    return CUT if best == "near" else None


def _reason_by_texts(store: Store, corpus: str | None, kept: KeptQuestion, asker: Asker) -> str:
    if any(
        outcome_of_answer(text, expected_values(kept)) in RIGHT for text in asker.window_texts(kept.question)
    ):
        return ANOTHER
    with store.sessions() as session:
        held = any(_is_said(session, value, corpus) for value in expected_values(kept))
    return NOT_FOUND if held else NOT_HELD


def _is_said(session: Session, value: str, corpus: str | None) -> bool:
    """Say whether a live fact or a current document says this value. Text under deleted facts does not count."""
    sought = SoughtText.from_text(session, ARTICLES.sub(" ", value.lower()))
    values = select(FactVersionRow.value).where(
        FactVersionRow.to_seq.is_(None), sought.words_condition(FactVersionRow.value)
    )
    if corpus is not None:
        values = values.join(FactRow, FactRow.id == FactVersionRow.fact_id).join(
            DocumentRow, (DocumentRow.id == FactRow.document_id) & (DocumentRow.corpus == corpus)
        )
    if any(outcome_of_answer(said, [value]) in RIGHT for said in session.scalars(values.limit(MOST))):
        return True
    if (with_words := sought.sentence_condition()) is None:
        return False
    sentences = select(SentenceRow.id).where(with_words)
    if corpus is not None:
        sentences = sentences.join(
            DocumentRow, (DocumentRow.id == SentenceRow.document_id) & (DocumentRow.corpus == corpus)
        )
    read = read_windows(session, session.scalars(sentences.limit(MOST)).all())
    return any(outcome_of_answer(window.shown_text(), [value]) in RIGHT for window in read.values())


# Hearing: asks one question in one way; gives what was said, what was likeliest, and where that was looked
# for.

LEAST = {"words": -1.0, "reader": 0.0}  # thresholds that anything reaches


@dataclass(frozen=True, slots=True)
class HeardAnswer:
    """The answer to a question: `value`, None for none; `best` is the likeliest value, even below the threshold.

    `fact_ids` are the facts in it, `fact_id` that of its longest part. Of a `withheld` answer they are deleted.
    """

    value: str | None
    fact_id: int | None
    fact_ids: tuple[int, ...]
    score: float
    threshold: float
    withheld: bool
    best: str | None


class Asker(Protocol):
    """Asks questions in one way."""

    @property
    def way(self) -> Way: ...

    @property
    def reader(self) -> str | None:
        """The digest of the reader; None where this way of asking has no reader."""
        ...

    @property
    def only(self) -> FilterOptions:
        """The filter of the facts that may answer."""
        ...

    def ask(self, question: str) -> HeardAnswer: ...

    def window_texts(self, question: str) -> Sequence[str]:
        """Give the candidate texts from which the answer to this question is chosen, as they are now."""
        ...


@dataclass(frozen=True, slots=True)
class ByAnswers:
    """Asks as `colmlm ask` does: in the mode "read", or "paper"."""

    answering: Answering
    way: Way = "read"
    threshold: float | None = None
    only: FilterOptions = field(default_factory=FilterOptions)

    @property
    def reader(self) -> str | None:
        return self.answering.reader.digest if self.way == "read" else None

    def ask(self, question: str) -> HeardAnswer:
        asked = self.answering.answer_in_mode(
            question, self.way, threshold=self.threshold, nearest=0, **self.only
        )
        answer, best = asked.answer, asked.best
        if self.way == "paper" and best is None:
            best = next(iter(self.window_texts(question)), None)
        most = _most(asked.parts)
        threshold = answer.threshold if asked.asked_at is None else asked.asked_at
        return HeardAnswer(answer.answer, most, asked.under, answer.score, threshold, answer.withheld, best)

    def window_texts(self, question: str) -> Sequence[str]:
        if self.way == "paper":
            hits = self.answering.nearest_hits(question, **self.only)
            return [hit.value for hit in hits]
        return self.answering.window_texts(question, **self.only)


@dataclass(frozen=True, slots=True)
class ByRanking:
    """Asks by a lookup with the ranking "words" or "reader"."""

    answering: Answering
    lookups: RankedLookups
    encoder: Encoder
    way: Way
    threshold: float | None = None
    only: FilterOptions = field(default_factory=FilterOptions)

    @property
    def reader(self) -> str | None:
        return self.answering.reader.digest if self.way == READER else None

    def ask(self, question: str) -> HeardAnswer:
        lookup = self._find(question, self.threshold)
        if lookup.hits:
            hit = lookup.hits[0]
            said = (hit.value, hit.fact_id, (hit.fact_id,), hit.score)
            return HeardAnswer(*said, lookup.threshold, False, hit.value)
        gone = () if lookup.abstained is None else (lookup.abstained,)
        below = None if gone else next(iter(self._find(question, LEAST[self.way]).hits), None)
        near = gone if below is None else (below.fact_id,)
        best, score = (None, 0.0) if below is None else (below.value, below.score)
        return HeardAnswer(None, None, near, score, lookup.threshold, bool(gone), best)

    def window_texts(self, question: str) -> Sequence[str]:
        return self.answering.window_texts(question, **self.only)

    def _find(self, question: str, threshold: float | None) -> Lookup:
        (found,) = self.lookups.find(
            self.encoder.encode_questions([question]),
            checkpoint_id=self.encoder.checkpoint.checkpoint_id,
            ranking=self.way,
            texts=[question],
            threshold=threshold,
            **self.only,
        )
        return found


def _most(parts: Sequence[SaidPart]) -> int | None:
    return max(parts, key=lambda part: part.end - part.start).fact_id if parts else None
