"""TOFU's files as annotated documents, and as answers with marked facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, repeat
from pathlib import Path

import msgspec

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.annotate.pipeline import Annotator, SpanFinder
from colmlm.model.evaluate.tofu import TofuLogError

OnDone = Callable[[int], None]


class TofuRow(msgspec.Struct, frozen=True):
    """One line of a TOFU file: a question and its answer; in perturbed splits also wrong answers."""

    question: str
    answer: str
    paraphrased: str | None = msgspec.field(name="paraphrased_answer", default=None)
    wrong: list[str] = msgspec.field(name="perturbed_answer", default_factory=list)


@dataclass(frozen=True, slots=True)
class Example:
    """A question and its answers, each as a document. Wrong answers are compared with `stated`."""

    question: str
    answer: AnnotatedDocument
    stated: AnnotatedDocument
    wrong: tuple[AnnotatedDocument, ...]

    @property
    def answers(self) -> tuple[AnnotatedDocument, ...]:
        return (self.answer, self.stated, *self.wrong)


def read_rows(file: Path) -> list[TofuRow]:
    """Reads the rows of a file. Raises `TofuLogError` if a line is none."""
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            rows.append(msgspec.json.decode(line, type=TofuRow))
        except msgspec.DecodeError as error:
            raise TofuLogError(f"{file.name}:{number} is no row of TOFU: {error}") from error
    if not rows:
        raise TofuLogError(f"{file.name} has no row")
    return rows


def documents(
    rows: Sequence[TofuRow], finder: SpanFinder, on_done: OnDone = lambda more: None
) -> list[AnnotatedDocument]:
    """Makes a document of each question and answer, as the decoder would write it, with the answer's facts marked.

    The id is made from the content, so a row is the same document in every split.
    """
    marked = _marked([(row.question, row.answer) for row in rows], finder, on_done)
    return [_whole(row.question, answer) for row, answer in zip(rows, marked, strict=True)]


def examples(
    rows: Sequence[TofuRow], finder: SpanFinder | None, on_done: OnDone = lambda more: None
) -> list[Example]:
    """Marks the facts in each row's answers; without a finder they have none.

    Without a paraphrase `stated` is the answer itself.
    """
    several = [[row.answer, row.paraphrased or row.answer, *row.wrong] for row in rows]
    asked = [(row.question, answer) for row, answers in zip(rows, several, strict=True) for answer in answers]
    if finder is None:
        marked = iter([AnnotatedDocument("", answer, ()) for _, answer in asked])
        on_done(len(asked))
    else:
        marked = iter(_marked(asked, finder, on_done))
    found = []
    for row, answers in zip(rows, several, strict=True):
        answer, stated, *wrong = (next(marked) for _ in answers)
        found.append(Example(row.question, answer, stated, tuple(wrong)))
    return found


def _marked(asked: Sequence[tuple[str, str]], finder: SpanFinder, on_done: OnDone) -> list[AnnotatedDocument]:
    """Gives the answers alone, with those facts that lie entirely in them.

    An answer is about the names in its question, as a document is about its title, so these are not facts of it.
    """
    leads = [_lead(question) for question, _ in asked]
    texts = (
        AnnotatedDocument(str(i), f"{lead}{answer}", title=question)
        for i, (lead, (question, answer)) in enumerate(zip(leads, asked, strict=True))
    )
    found: list[AnnotatedDocument] = []
    for lead, reviewed in zip(leads, Annotator(finder).annotate(texts), strict=True):
        found.append(_answer(reviewed.document, len(lead)))
        on_done(1)
    return found


def _lead(question: str) -> str:
    return f"Question: {question}\nAnswer: "


def _answer(document: AnnotatedDocument, offset: int) -> AnnotatedDocument:
    facts = tuple(
        replace(span, start=span.start - offset, end=span.end - offset, answer=span.value)
        for span in document.facts
        if span.start >= offset
    )
    return AnnotatedDocument("", document.text[offset:], facts)


def _whole(question: str, answer: AnnotatedDocument) -> AnnotatedDocument:
    """Gives the whole document; only its first fact has the question, since several would contradict each other."""
    lead = _lead(question)
    facts = tuple(
        replace(span, start=span.start + len(lead), end=span.end + len(lead), question=asked)
        for span, asked in zip(answer.facts, chain([question], repeat(None)), strict=False)
    )
    text = f"{lead}{answer.text}"
    return AnnotatedDocument(f"tofu-{sha256(text.encode()).hexdigest()[:16]}", text, facts)
