"""Calibration of answers: chooses the score from which this base answers, to a stated rate of wrong answers.

Each question of a sample is asked as the base is, and again as if no document that answers it were there. A threshold
is safe where either kind is answered so seldom wrongly that a rate above the stated one would have shown more with a
probability of `CERTAINTY` (an exact bound, after Clopper and Pearson). The least safe one is chosen, but none above the
shipped one as long as the sample shows no more than the stated rate there: that one was fitted on many other questions,
and a small sample would raise it for want of certainty alone.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import text

from colmlm.kb.answers.answering import MAX_QUESTION, Answering, QuestionReading, SaidPassage
from colmlm.kb.answers.places import weigh_span
from colmlm.kb.answers.records import AnswerShares, MeasuredAnswers
from colmlm.kb.answers.windows import FactInWindow
from colmlm.kb.errors import CalibrationRefused, count_of
from colmlm.kb.texts.asked import OF_SEVERAL_WORDS, asks_to_compare, form_of

CERTAINTY = 0.8
RATE = 0.05  # of wrong answers; at one as high, the shipped threshold stays where the sample shows no more
TOGETHER = 128  # questions whose windows are read in one call
_STEPS = 1000  # of a threshold between 0 and 1

_OF_CORPORA = text("""
SELECT min(f.id) AS fact_id, f.question, array_agg(DISTINCT v.value) AS said
FROM fact f JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
JOIN document d ON d.id = f.document_id AND d.replaced_seq IS NULL
WHERE d.corpus = ANY(:corpora) AND length(f.question) <= :longest AND f.question <> ''
    AND NOT EXISTS (SELECT FROM change c WHERE c.seq = f.created_seq AND c.payload ? 'generated')
GROUP BY f.question ORDER BY md5(f.question || :seed) LIMIT :most
""")
_LEFT = text("SELECT EXISTS (SELECT FROM sentence WHERE id <> ALL(:gone))")
_SENTENCES = text("""
SELECT s.id FROM sentence s WHERE s.document_id = ANY(:documents)
    OR s.document_id = (SELECT document_id FROM fact WHERE id = :fact_id)
""")


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question with the values that answer it (none if nothing does), and the id of the fact that has it, if any."""

    text: str
    values: tuple[str, ...]
    fact_id: int | None = None


class JudgedAnswer(NamedTuple):
    """The likeliest span and passage: their outcomes, and the highest threshold of spans at which each is given."""

    score: float
    outcome: str
    passage_score: float = 0.0
    passage: str = "none"
    asks_for_several: bool = False

    def outcome_at(self, threshold: float) -> str:
        """Give the outcome of the answer at a threshold: "right", "near", "wrong", or "none" for no answer."""
        is_span = self.outcome != "none" and self.score >= threshold
        is_passage = self.passage != "none" and self.passage_score >= threshold
        if is_passage and (self.asks_for_several or not is_span):
            return self.passage
        return self.outcome if is_span else "none"


@dataclass(slots=True)
class SampleAnswers:
    """The likeliest answers to questions that the base can answer, and to those that it cannot (`others`)."""

    answerable: list[JudgedAnswer]
    others: list[JudgedAnswer]


def draw_questions(answering: Answering, corpora: Sequence[str], most: int, seed: int) -> list[KnownQuestion]:
    """Draw questions of facts in the documents of these corpora, at most `most`, without those that a model wrote."""
    drawn = {"corpora": list(corpora), "longest": MAX_QUESTION, "seed": str(seed), "most": most}
    with answering.kb.sessions() as session:
        rows = session.execute(_OF_CORPORA, drawn).all()
    return [KnownQuestion(row.question, tuple(row.said), row.fact_id) for row in rows]


def ask_each(
    answering: Answering, questions: Sequence[KnownQuestion], on_asked: Callable[[int, int | None], None]
) -> SampleAnswers:
    """Ask each question; if sentences answer it, ask again without them. Tell `on_asked` the number and the total."""
    asked = SampleAnswers([], [])
    for at in range(0, len(questions), TOGETHER):
        some, again = questions[at : at + TOGETHER], list[tuple[KnownQuestion, frozenset[int]]]()
        readings = answering.read_questions([(one.text, ()) for one in some])
        for number, (one, reading) in enumerate(zip(some, readings, strict=True), at + 1):
            passage = answering.likeliest_passage(one.text, reading)
            judged = _judgement(answering, one, reading, passage)
            (asked.answerable if one.values else asked.others).append(judged)
            gone = _sentences_to_leave_out(answering, one, reading, passage)
            if gone and _is_any_left(answering, gone):
                again.append((one, gone))
            on_asked(number, len(questions))
        readings = answering.read_questions([(one.text, gone) for one, gone in again])
        for (one, _), left in zip(again, readings, strict=True):
            asked.others.append(_judgement(answering, one, left, answering.likeliest_passage(one.text, left)))
    return asked


def calibrate_answers(asked: SampleAnswers, shipped: float, rate: float = RATE) -> MeasuredAnswers:
    """Choose the threshold for this rate of wrong answers, and measure the sample's answers at it and the shipped one.

    Raises `CalibrationRefused` for too few questions, and if no threshold that lets a right answer pass keeps to the
    rate.
    """
    require_enough_questions(len(asked.answerable), "with an answer", rate)
    require_enough_questions(len(asked.others), "without an answer", rate, "with an empty value in the file")
    by_wrong = _least_safe_threshold(asked.answerable, allowed_wrong(len(asked.answerable), rate))
    by_alarms = _least_safe_threshold(asked.others, allowed_wrong(len(asked.others), rate))
    safe, before = max(by_wrong, by_alarms), _shares(asked, shipped)
    stays = rate >= RATE and max(before.wrong, before.alarms) <= rate
    here = _shares(asked, min(safe, shipped) if stays else safe)
    if not here.right:
        of_wrong, of_alarms = "questions are answered wrongly", "questions without an answer get one"
        what = of_wrong if by_wrong >= by_alarms else of_alarms
        raise CalibrationRefused(
            f"too many {what}, and no threshold keeps to {rate:.1%} with a right answer left",
            f"Allow more with --wrong, which was {rate:g}, or correct what is wrong in the documents or the questions.",
        )
    return MeasuredAnswers(
        here=here,
        shipped=before,
        rate=rate,
        most_wrong=upper_bound(round(here.wrong * len(asked.answerable)), len(asked.answerable)),
        most_alarms=upper_bound(round(here.alarms * len(asked.others)), len(asked.others)),
        answerable=len(asked.answerable),
        unanswerable=len(asked.others),
    )


def require_enough_questions(number: int, what: str, rate: float, how: str = "") -> None:
    """Raise `CalibrationRefused` if `number` questions are too few for this rate: `what` names them, `how` a remedy."""
    if number < (least := least_questions(rate)):
        remedy = " ".join((f"Add {least - number} or more", how)).strip()
        if number and (enough := upper_bound(0, number)) <= 0.5:
            share = math.ceil(enough * 1000) / 1000
            remedy += f", or allow {share:.1%} wrong ones with --wrong {share:g}"
        raise CalibrationRefused(
            f"it takes {count_of(least, 'question')} {what} to show that at most {rate:.1%} are wrong, and these are "
            f"{number}",
            f"{remedy}.",
        )


def least_questions(rate: float) -> int:
    """Give the number of questions that show this rate of wrong answers if none is answered wrongly."""
    return math.ceil(math.log(1 - CERTAINTY) / math.log(1 - rate))


def allowed_wrong(questions: int, rate: float) -> int:
    """Give how many wrong answers to these questions still show, at `CERTAINTY`, that the rate is kept; -1: too few."""
    wrong = -1
    while _lower_tail(wrong + 1, questions, rate) <= 1 - CERTAINTY:
        wrong += 1
    return wrong


def upper_bound(wrong: int, questions: int) -> float:
    """Give the highest rate of wrong answers that is plausible (at `CERTAINTY`) after `wrong` of `questions`."""
    low, high = wrong / questions, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _lower_tail(wrong, questions, middle) < 1 - CERTAINTY else (middle, high)
    return high


def _lower_tail(wrong: int, questions: int, rate: float) -> float:
    """Give the probability of at most `wrong` wrong answers to the questions, if each is wrong at this rate."""
    if wrong >= questions or not rate:
        return 1.0
    if rate >= 1:
        return 0.0
    each, other, all_ = math.log(rate), math.log1p(-rate), math.lgamma(questions + 1)
    return sum(
        math.exp(
            all_ - math.lgamma(k + 1) - math.lgamma(questions - k + 1) + k * each + (questions - k) * other
        )
        for k in range(wrong + 1)
    )


def _least_safe_threshold(asked: Sequence[JudgedAnswer], passing: int) -> float:
    """Give the least threshold, a multiple of 1 / `_STEPS`, from which on at most `passing` answers are wrong."""
    scores = {score for one in asked for score in (one.score, one.passage_score)}
    for score in sorted(scores, reverse=True):  # what is said changes there alone
        if sum(one.outcome_at(score) == "wrong" for one in asked) > passing:
            return (math.floor(score * _STEPS) + 1) / _STEPS
    return 0.0


def _shares(asked: SampleAnswers, threshold: float) -> AnswerShares:
    def share(of: Sequence[JudgedAnswer], outcome_: str) -> float:
        return sum(one.outcome_at(threshold) == outcome_ for one in of) / len(of)

    right, near, wrong = (share(asked.answerable, name) for name in ("right", "near", "wrong"))
    return AnswerShares(threshold, right, near, wrong, share(asked.others, "wrong"))


def _judgement(
    answering: Answering, one: KnownQuestion, reading: QuestionReading, passage: SaidPassage | None
) -> JudgedAnswer:
    confidence, places = answering.reader.confidence, reading.places
    if asks_to_compare(one.text) or (places and places[0].is_dead):
        return JudgedAnswer(0.0, "none")
    found = JudgedAnswer(0.0, "none")
    if places:
        found = JudgedAnswer(
            confidence.probability_of(weigh_span(one.text, places)),
            _outcome(one, places[0].text, places[0].facts),
        )
    if passage is None:
        return found
    return found._replace(
        passage_score=confidence.span_threshold_of(passage.score),
        passage=_outcome(one, passage.window.text, passage.window.facts),
        asks_for_several=form_of(one.text) in OF_SEVERAL_WORDS,
    )


def _outcome(one: KnownQuestion, said: str, facts: Sequence[FactInWindow]) -> str:
    found = outcome_of_answer(said, one.values)
    touches = any(fact.fact_id == one.fact_id for fact in facts)
    return "right" if touches or found in RIGHT else found


def _sentences_to_leave_out(
    answering: Answering, one: KnownQuestion, reading: QuestionReading, passage: SaidPassage | None
) -> frozenset[int]:
    """Give the sentences of the question's document, and of the documents in which a right answer was found."""
    right = [
        place.window
        for place in reading.places
        if one.values and _outcome(one, place.text, place.facts) == "right"
    ]
    if passage is not None and one.values:
        right += (
            [passage.window] if _outcome(one, passage.window.text, passage.window.facts) == "right" else []
        )
    documents = [window.source.document_id for window in right if window.source is not None]
    with answering.kb.sessions() as session:
        rows = session.scalars(_SENTENCES, {"documents": documents, "fact_id": one.fact_id})
        return frozenset(rows) | {window.sentence_id for window in right}


def _is_any_left(answering: Answering, gone: frozenset[int]) -> bool:
    """Tell whether the base has a sentence that is not among these."""
    with answering.kb.sessions() as session:
        return bool(session.scalar(_LEFT, {"gone": list(gone)}))


# Outcomes: judges an answer to a question whose answers are known, by its words, as SQuAD's script compares
# them.

ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROPPED = str.maketrans("", "", string.punctuation)

RIGHT = ("exact", "holds")


def normalise_answer(text: str) -> str:
    """Normalise an answer as SQuAD's script does: no case, punctuation, articles or runs of blanks."""
    return " ".join(ARTICLES.sub(" ", text.casefold().translate(_DROPPED)).split())


def outcome_of_answer(said: str | None, golds: Sequence[str]) -> str:
    """Give the outcome of an answer (None: it abstained) to a question that has these answers.

    It is "exact", "holds" if the answer contains one of them, "near" if one contains the answer, "wrong" or
    "abstained".
    """
    if said is None:
        return "abstained"
    value = normalise_answer(said)
    wanted = [normalise_answer(gold) for gold in golds]
    if value in wanted:
        return "exact"
    if any(gold and f" {gold} " in f" {value} " for gold in wanted):
        return "holds"
    return "near" if value and any(f" {value} " in f" {gold} " for gold in wanted) else "wrong"
