"""The quality of a reader: answers in the passage that holds them, and how well it tells that one holds none."""

from __future__ import annotations

import csv
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from colmlm.kb.answers.reading import Passage, PassageReading, Reader
from colmlm.model.reader.training import ReaderExample, ReaderTask
from colmlm.model.text.questions import keywords_of, statement_of
from colmlm.model.training.task import StepMetrics

_KINDS = ("who", "when", "where", "why", "which", "what")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class RightShare:
    """Shares of the questions that were answered exactly, and the mean share of words in common (F1)."""

    questions: int
    exact: float
    f1: float


@dataclass(frozen=True, slots=True)
class ReaderMeasures:
    """The figures of a reader.

    `answered` are those of questions with the passage that holds their answer, `by_kind` by their question word.
    `none_auc` is the probability that such a pair has a higher margin over "none" than one without the answer.
    """

    answered: RightShare
    by_kind: dict[str, RightShare]
    unanswered: int
    none_auc: float


def measure_reader(
    reader: Reader,
    examples: Sequence[ReaderExample],
    on_examples: Callable[[int, int | None], None] = lambda *_: None,
) -> ReaderMeasures:
    """Measure a reader on examples with and without an answer."""
    readings = _read_examples(reader, examples, on_examples)
    judged = [
        (question_kind(example.question), *_compare_reading(example, reading))
        for example, reading in zip(examples, readings, strict=True)
        if example.answer is not None
    ]
    kinds = sorted({kind for kind, *_ in judged})
    pairs = list(zip(examples, readings, strict=True))
    empty = [reading.margin for example, reading in pairs if example.answer is None]
    held = [reading.margin for example, reading in pairs if example.answer is not None]
    return ReaderMeasures(
        answered=_right(judged),
        by_kind={name: _right([one for one in judged if one[0] == name]) for name in kinds},
        unanswered=len(empty),
        none_auc=round(auc(held, empty), 4),
    )


def forms_of_asking(examples: Sequence[ReaderExample]) -> dict[str, list[ReaderExample]]:
    """Give the examples as questions, without titles, as keywords and as statements, where the rules make one."""
    made: dict[str, Callable[[str], str | None]] = {"keywords": keywords_of, "statements": statement_of}
    return {
        "questions": list(examples),
        "without title": [replace(example, title="") for example in examples],
        **{
            how: [replace(e, question=said) for e in examples if (said := form(e.question)) is not None]
            for how, form in made.items()
        },
    }


def question_kind(question: str) -> str:
    """Give the word that says what is asked for, "how many" or "how", or "other"."""
    words = re.findall(r"[a-z]+", question.lower())
    if "how" in words:
        return "how many" if "how many" in " ".join(words) or "how much" in " ".join(words) else "how"
    return next((word for word in words if word in _KINDS), "other")


def normalise_answer(answer: str) -> str:
    """Give an answer as SQuAD's evaluation compares it: in lower case, without articles and punctuation."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def f1(said: str, gold: str) -> float:
    """Give the harmonic mean of precision and recall of the words, as SQuAD's evaluation does."""
    ours, theirs = normalise_answer(said).split(), normalise_answer(gold).split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Give the probability that one of `higher` is above one of `lower`; equal ones count half."""
    if not higher or not lower:
        return float("nan")
    below = np.sort(np.asarray(lower))
    left, right = (np.searchsorted(below, np.asarray(higher), side=side) for side in ("left", "right"))
    return float((left + right).mean() / 2 / len(below))


def _read_examples(
    reader: Reader, examples: Sequence[ReaderExample], on_examples: Callable[[int, int | None], None]
) -> list[PassageReading]:
    readings = []
    for example in examples:
        readings += reader.read(example.question, [Passage(example.title, example.text)])
        on_examples(len(readings), len(examples))
    return readings


def _compare_reading(example: ReaderExample, reading: PassageReading) -> tuple[bool, float]:
    assert example.answer is not None
    gold = example.text[slice(*example.answer)]
    said = example.text[slice(*reading.spans[0][:2])] if reading.spans else ""
    return normalise_answer(said) == normalise_answer(gold), f1(said, gold)


def _right(judged: Iterable[tuple[str, bool, float]]) -> RightShare:
    rows = list(judged)
    count = max(1, len(rows))
    return RightShare(
        len(rows),
        round(sum(exact for _, exact, _ in rows) / count, 4),
        round(sum(shared for *_, shared in rows) / count, 4),
    )


# The learning curve of a reader: its figures on held-out questions, by the examples it has seen.

CURVE_FILE = "held_out.csv"
_COLUMNS = ("examples", "exact", "f1", "none_auc")


def train_with_curve(
    task: ReaderTask, directory: Path, held_out: Sequence[ReaderExample], every: int
) -> Iterator[StepMetrics]:
    """Train in `directory`, and measure after each `every` examples and at the end; yield each step's metrics."""
    path, batch = directory / CURVE_FILE, task.config.batch
    for metrics in task.run(directory):
        seen = metrics.step * batch
        at_end = metrics.step == task.num_steps or metrics.done >= 1.0
        if held_out and (at_end or seen // every > (seen - batch) // every):
            _add(path, seen, task, held_out)
        yield metrics


def _add(path: Path, seen: int, task: ReaderTask, held_out: Sequence[ReaderExample]) -> None:
    """Add a line, and remove those of later steps, whose work was lost in an interruption."""
    with task.reader() as reader:
        measured = measure_reader(reader, held_out)
    rows = [row for row in _rows(path) if int(row["examples"]) < seen]
    figures = (seen, measured.answered.exact, measured.answered.f1, measured.none_auc)
    rows.append(dict(zip(_COLUMNS, map(str, figures), strict=True)))
    with path.open("w", newline="") as target:
        writer = csv.DictWriter(target, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as source:
        return list(csv.DictReader(source))
