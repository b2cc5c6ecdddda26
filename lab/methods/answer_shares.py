"""What share of questions is answered rightly, wrongly or not at all, at one threshold and over all of them."""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from colmlm.kb.answers.calibration import RIGHT, normalise_answer, outcome_of_answer
from colmlm.kb.answers.records import PASSAGE, SPAN, Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.kb.corpus.squad import SquadQuestion, read_questions, read_squad
from colmlm.kb.errors import InvalidValue
from colmlm.kb.texts.wording import Span
from colmlm.model.evaluate.run_log import Draw, bootstrap, share_bounds

# Asks people's questions of raw texts: a knowledge base of its own gets the texts as `corpus add` would, and
# answers.
#
# People's marks are used as gold only. A *right* answer equals a gold one or holds it, after SQuAD's
# normalisation, and stands in the text where it says; a *near* one is held by a gold one. An answer that its
# document does not say at its place is *made up*.

OUTCOMES = ("exact", "holds", "near", "wrong", "abstained", "made_up")


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """A question, its gold answers, the document that has them, and where the first stands there."""

    text: str
    answers: tuple[str, ...]
    document: str
    place: Span | None


@dataclass(frozen=True, slots=True)
class RawTexts:
    """Texts without marks, the questions that they answer, and questions of texts that were left out."""

    documents: tuple[AnnotatedDocument, ...]
    questions: tuple[RawQuestion, ...]
    unanswerable: tuple[RawQuestion, ...]


def draw(squad: Path, documents: int | None, questions: int | None, absent: int, seed: int) -> RawTexts:
    """Draw paragraphs of a SQuAD file, with their questions, and questions of other paragraphs.

    Without a number all are taken; a paragraph in twenty is then left out if questions without an answer are wanted.
    """
    texts = [
        AnnotatedDocument(one.external_id, one.text, (), title=one.title)
        for parsed in read_squad(squad)
        if (one := parsed.document) is not None
    ]
    order = random.Random(seed)
    order.shuffle(texts)
    taken = texts[: documents if documents is not None else len(texts) - (len(texts) // 20 if absent else 0)]
    inside = {one.external_id for one in taken}
    asked = [_question(one) for one in read_questions(squad)]
    answerable = [one for one in asked if one.document in inside]
    others = [one for one in asked if one.document not in inside]
    order.shuffle(answerable)
    order.shuffle(others)
    return RawTexts(tuple(taken), tuple(answerable[:questions]), tuple(others[:absent]))


def _question(one: SquadQuestion) -> RawQuestion:
    return RawQuestion(one.question, one.answers, one.document, one.place)


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A question with the answer that was said, its score and outcome, the seconds it took, the document that it cites
    with the place there, and its grain.
    """

    question: RawQuestion
    said: str | None
    score: float
    outcome: str
    seconds: float
    cited: tuple[str, int, int] | None = None
    grain: str = SPAN

    def outcome_at(self, threshold: float) -> str:
        """Give the outcome at a threshold."""
        return self.outcome if self.said is not None and self.score >= threshold else "abstained"


def ask_all(
    questions: Sequence[RawQuestion],
    answer: Callable[[str], Answer],
    texts: Iterable[AnnotatedDocument],
    advance: Callable[[int, int | None], None],
) -> list[RawAnswer]:
    """Ask every question, and check each answer against the text that it cites."""
    done: list[RawAnswer] = []
    heard = ask_questions([question.text for question in questions], answer, texts, advance)
    for question, (got, stands, seconds) in zip(questions, heard, strict=True):
        found = outcome_of_answer(got.answer, question.answers) if stands else "made_up"
        cited = (got.source.external_id, got.source.start, got.source.end) if got.source else None
        done.append(RawAnswer(question, got.answer, got.score, found, seconds, cited, got.grain))
    return done


def ask_questions(
    questions: Sequence[str],
    answer: Callable[[str], Answer],
    texts: Iterable[AnnotatedDocument],
    advance: Callable[[int, int | None], None],
) -> Iterator[tuple[Answer, bool, float]]:
    """Yield what is said to each question, whether it stands where it cites, and the seconds that it took."""
    by_id = {one.external_id: one.text for one in texts}
    for number, question in enumerate(questions, start=1):
        begun = time.perf_counter()
        got = answer(question)
        seconds = time.perf_counter() - begun
        yield got, got.answer is None or _is_quoted(got, by_id), seconds
        advance(number, len(questions))


def _is_quoted(answer: Answer, by_id: dict[str, str]) -> bool:
    source = answer.source
    return (
        source is not None and by_id.get(source.external_id, "")[source.start : source.end] == answer.answer
    )


def coverage(texts: RawTexts, marked: Iterable[AnnotatedDocument]) -> dict[str, float]:
    """Give the shares of the gold spans that are a fact, and that a fact overlaps, and the facts in 100 words."""
    spans = {one.external_id: [(f.start, f.end) for f in one.facts] for one in marked}
    placed = [one for one in texts.questions if one.place is not None]
    exact = overlapped = 0
    for one in placed:
        assert one.place is not None
        start, end = one.place
        of = spans.get(one.document, [])
        exact += (start, end) in of
        overlapped += any(start < e and s < end for s, e in of)
    words = sum(len(one.text.split()) for one in texts.documents)
    facts = sum(map(len, spans.values()))
    return {
        "coverage": overlapped / max(1, len(placed)),
        "coverage_exact": exact / max(1, len(placed)),
        "facts_per_100_words": 100 * facts / max(1, words),
    }


NAMES = ("exact", "right", *OUTCOMES[2:])
STEPS = 41
WRONG = 0.05
KEPT = ("threshold", "no_threshold", "at_5_wrong", "curve", "milliseconds")  # whatever the thresholds are

Answers = Sequence[RawAnswer]


def report(asked: Answers, absent: Answers, threshold: float, seed: int) -> dict[str, Any]:
    """Give the shares at a threshold with their 95 % intervals, those without one, and those at `WRONG` wrong answers.

    Shares are of `asked`; a false alarm is an answer to a question of `absent`. Intervals are by bootstrap over the
    questions. A threshold of minus infinity is told as None.
    """
    intervals = _intervals(asked, absent, threshold, seed)
    return {
        "questions": len(asked),
        "unanswerable": len(absent),
        "threshold": threshold if np.isfinite(threshold) else None,
        **shares(asked, absent, threshold),
        "right_ci": intervals["right"],
        "intervals": intervals,
        "no_threshold": shares(asked, absent, -np.inf),
        "at_5_wrong": shares_at_wrong(asked, absent, WRONG),
        "curve": curve(asked, absent),
        "milliseconds": 1000 * float(np.median([one.seconds for one in asked])),
    }


def report_shipped(said: Answers, said_absent: Answers, found: dict[str, Any], seed: int) -> dict[str, Any]:
    """Give a report whose shares are those of what was said at the shipped thresholds, of spans and of passages.

    `passage` is the share of the questions that got a passage. `no_threshold`, the curve and `at_5_wrong` stay those of
    `found`, which are of the best answers whatever their scores.
    """
    shipped = report(said, said_absent, 0.0, seed)
    kept = {name: found[name] for name in KEPT}
    passages = sum(one.said is not None and one.grain == PASSAGE for one in said)
    return shipped | kept | {"passage": passages / max(1, len(said))}


def shares(asked: Answers, absent: Answers, threshold: float) -> dict[str, float]:
    """Give the share of each outcome at a threshold. `right` is exact or holding."""
    found = [one.outcome_at(threshold) for one in asked]
    by_name = {name: found.count(name) / max(1, len(found)) for name in OUTCOMES}
    by_name["right"] = sum(by_name[name] for name in RIGHT)
    alarms = sum(one.outcome_at(threshold) != "abstained" for one in absent)
    return {name: by_name[name] for name in NAMES} | {"false_alarm": alarms / max(1, len(absent))}


def shares_at_wrong(asked: Answers, absent: Answers, most: float) -> dict[str, float]:
    """Give the least threshold at which no more than `most` are wrong or made up, and the shares there.

    It is read off these very questions, so it compares ways of answering and promises nothing of others.
    """
    scores = sorted({one.score for one in asked})
    fewest = bisect_left(scores, True, key=lambda least: _wrong(asked, least) <= most)
    least = scores[fewest] if fewest < len(scores) else threshold_above(scores)
    return {"threshold": least, **shares(asked, absent, least)}


def _wrong(asked: Answers, threshold: float) -> float:
    return sum(one.outcome_at(threshold) in ("wrong", "made_up") for one in asked) / max(1, len(asked))


def curve(asked: Answers, absent: Answers) -> list[dict[str, float]]:
    """Give the shares at thresholds between which about as many answers lie each time, the lowest first."""
    scores = [one.score for one in asked if one.said is not None]
    if not scores:
        return []
    levels = np.unique(np.quantile(scores, np.linspace(0, 1, STEPS), method="lower"))
    return [{"threshold": level, **shares(asked, absent, level)} for level in levels.tolist()]


def answering_as_many(asked: Answers, number: int) -> float:
    """Give the threshold at which so many of the questions are answered, or more of equal scores."""
    falling = sorted((one.score for one in asked if one.said is not None), reverse=True)
    return falling[min(number, len(falling)) - 1] if number and falling else threshold_above(falling)


def threshold_above(scores: Sequence[float]) -> float:
    """Compute a threshold that none of these scores reaches."""
    return float(np.nextafter(max(scores, default=0.0), np.inf))


def num_answered(asked: Answers, threshold: float) -> int:
    return sum(one.outcome_at(threshold) != "abstained" for one in asked)


def _intervals(asked: Answers, absent: Answers, threshold: float, seed: int) -> dict[str, list[float]]:
    there = _indicators(asked, threshold)
    alarms_M = np.array([one.outcome_at(threshold) != "abstained" for one in absent], dtype=float)

    def measure(draw: Draw) -> dict[str, float]:
        rows = draw(len(asked))
        found = {name: float(is_N[rows].mean()) for name, is_N in there.items()}
        return found | {"false_alarm": float(alarms_M[draw(len(absent))].mean())} if len(absent) else found

    told, found = shares(asked, absent, threshold), bootstrap(measure, seed=seed)
    number = {"false_alarm": len(absent)}
    return {name: list(share_bounds(told[name], found[name], number.get(name, len(asked)))) for name in found}


def _indicators(asked: Answers, threshold: float) -> dict[str, NDArray[np.float64]]:
    outcomes = [one.outcome_at(threshold) for one in asked]
    names = {name: (name,) for name in NAMES} | {"right": RIGHT}
    return {name: np.array([one in which for one in outcomes], dtype=float) for name, which in names.items()}


# Documents as an organisation has them, with questions of several forms, and the judgement of what is said to them.
#
# A folder holds the documents below `files/`, in one folder for each kind, and `questions.jsonl`: a question a line
# with its `kind`, its `form`, the `file` that answers it (null: none does) and `answers`, short stretches of that file.
# With `all` a right answer says every one of them, else one suffices. A span is judged by its words alone. A passage is
# right where it says them and stands in that file.

PLAIN, ABSENT = "plain", "unanswerable"
FILES, QUESTIONS = "files", "questions.jsonl"


class WildQuestion(msgspec.Struct, frozen=True):
    """A question of a folder. `kind` is that of the documents, `form` how it is asked."""

    question: str
    kind: str
    form: str
    answers: list[str]
    file: str | None = None
    all: bool = False
    id: int = 0

    @property
    def is_answerable(self) -> bool:
        return self.file is not None


@dataclass(frozen=True, slots=True)
class WildTexts:
    documents: tuple[AnnotatedDocument, ...]
    questions: tuple[WildQuestion, ...]


@dataclass(frozen=True, slots=True)
class WildAnswer:
    """A question with what was said to it, its grain, score and outcome, whatever the threshold."""

    question: WildQuestion
    said: str | None
    grain: str
    score: float
    outcome: str
    cited: str | None


def read_wild(folder: Path) -> WildTexts:
    """Read the documents and questions of a folder. Raises `InvalidValue` for a question of another form."""
    found = find_files([folder / FILES])
    documents = [parsed.document for parsed in read_raw(found.files) if parsed.document is not None]
    lines = (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()
    questions = [_read_question(folder, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return WildTexts(tuple(documents), tuple(questions))


def _read_question(folder: Path, number: int, line: str) -> WildQuestion:
    """Read a line; a question without an id of its own gets the number of the line."""
    try:
        found = msgspec.json.decode(line, type=WildQuestion)
    except msgspec.MsgspecError as error:
        raise InvalidValue(QUESTIONS, f"line {number} is no question: {error}. Correct the line") from error
    if found.file is not None and not (folder / FILES / found.file).is_file():
        raise InvalidValue(
            QUESTIONS, f"line {number} names {found.file!r}, which is not below {FILES}/. Correct it"
        )
    return found if found.id else msgspec.structs.replace(found, id=number)


def ask_wild(
    questions: Sequence[WildQuestion],
    ask: Callable[[str], Answer],
    documents: Iterable[AnnotatedDocument],
    advance: Callable[[int, int | None], None] = lambda *_: None,
) -> list[WildAnswer]:
    """Ask each question, and judge what is said. What its document does not say at its place is made up."""
    done = []
    heard = ask_questions([question.question for question in questions], ask, documents, advance)
    for question, (got, stands, _) in zip(questions, heard, strict=True):
        cited = None if got.source is None else got.source.external_id
        if got.answer is None:
            judged = "silent"
        else:
            judged = judge(question, got.answer, got.grain, cited) if stands else "made_up"
        done.append(WildAnswer(question, got.answer, got.grain, got.score, judged, cited))
    return done


def judge(question: WildQuestion, said: str, grain: str, cited: str | None) -> str:
    """Judge what is said: "right", "part" where it says some of what all was asked for, "wrong" or "alarm"."""
    if not question.is_answerable:
        return "alarm"
    if not question.all and grain != PASSAGE:
        found = outcome_of_answer(said, question.answers)
        return "right" if found in RIGHT else "part" if found == "near" else "wrong"
    if grain == PASSAGE and cited != question.file:
        return "wrong"
    there = says(said, question.answers)
    if all(there) or (any(there) and not question.all):
        return "right"
    return "part" if any(there) else "wrong"


def says(text: str, values: Iterable[str]) -> list[bool]:
    """Tell of each value whether a text says it, in words that are alike after SQuAD's normalisation."""
    words = f" {normalise_answer(text)} "
    return [f" {normalise_answer(value)} " in words for value in values]


def shares_of(answers: Sequence[WildAnswer]) -> dict[str, float]:
    """Give the shares of the outcomes of questions that something answers, and of alarms among the others."""
    there = [one for one in answers if one.question.is_answerable]
    absent = [one for one in answers if not one.question.is_answerable]
    found: dict[str, float] = {"questions": len(there), "unanswerable": len(absent)}
    for name in ("right", "part", "wrong", "made_up", "silent"):
        found[name] = sum(one.outcome == name for one in there) / max(1, len(there))
    found["alarms"] = sum(one.outcome != "silent" for one in absent) / max(1, len(absent))
    return found


def tables(answers: Sequence[WildAnswer]) -> dict[str, dict[str, dict[str, float]]]:
    """Give the shares of all, of the plain questions and the others, by kind and by form."""
    groups: dict[str, dict[str, list[WildAnswer]]] = {"all": {"all": list(answers)}}
    groups |= {name: defaultdict(list) for name in ("plain_or_other", "kind", "form")}
    for one in answers:
        form = one.question.form
        groups["kind"][one.question.kind].append(one)
        groups["form"][form].append(one)
        groups["plain_or_other"][form if form in (PLAIN, ABSENT) else "other forms"].append(one)
    return {by: {name: shares_of(those) for name, those in of.items()} for by, of in groups.items()}
