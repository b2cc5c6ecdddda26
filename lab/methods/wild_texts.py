"""Documents as an organisation has them, with questions of several forms, and the judgement of what is said to them.

A folder holds the documents below ``files/``, in one folder for each kind, and ``questions.jsonl``: a question a line
with its `kind`, its `form`, the `file` that answers it (null: none does) and `answers`, short stretches of that file.
With `all` a right answer says every one of them, else one suffices. A span is judged by its words alone. A passage is
right where it says them and stands in that file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from colmlm.kb.answers.calibration import RIGHT, normalise_answer, outcome
from colmlm.kb.answers.records import PASSAGE, Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.corpus.raw.reading import read_raw
from colmlm.lab.methods.answer_shares import hear

PLAIN, ABSENT = "plain", "unanswerable"
FILES, QUESTIONS = "files", "questions.jsonl"


class WildQuestion(msgspec.Struct, frozen=True):
    """A question of a folder. `kind` is that of the documents, `form` how it is asked."""

    id: int
    question: str
    kind: str
    form: str
    answers: list[str]
    file: str | None = None
    all: bool = False

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
    """Read the documents and questions of a folder. Raises `ValueError` for a question of another form."""
    found = find_files([folder / FILES])
    documents = [parsed.document for parsed in read_raw(found.files) if parsed.document is not None]
    lines = (folder / QUESTIONS).read_text(encoding="utf-8").splitlines()
    questions = [msgspec.convert(json.loads(line), WildQuestion) for line in lines if line.strip()]
    return WildTexts(tuple(documents), tuple(questions))


def ask_wild(
    questions: Sequence[WildQuestion],
    ask: Callable[[str], Answer],
    documents: Iterable[AnnotatedDocument],
    advance: Callable[[int, int | None], None] = lambda *_: None,
) -> list[WildAnswer]:
    """Ask each question, and judge what is said. What its document does not say at its place is made up."""
    done = []
    heard = hear([question.question for question in questions], ask, documents, advance)
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
        found = outcome(said, question.answers)
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
