"""Asks questions with known answers, and keeps all that is read for each, to fit how sure answers are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import text

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.outcomes import RIGHT, normalised, outcome
from colmlm.kb.answers.windows import said_passages
from colmlm.lab.methods.fitting import ReadQuestion, Said
from colmlm.lab.methods.raw_documents import RawTexts
from colmlm.lab.methods.wild_texts import WildTexts

_SENTENCES = text("SELECT d.external_id, s.id FROM sentence s JOIN document d ON d.id = s.document_id")


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question of a kind of text, its answers (none: nothing there), their document, and whether all are wanted."""

    text: str
    kind: str
    answers: tuple[str, ...]
    document: str | None
    wants_all: bool = False


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """What a question's answers make of a span's words, and of the passage that a sentence stands in."""

    known: GoldQuestion
    passages: Mapping[int, tuple[str | None, str]] = field(default_factory=dict)

    def span(self, said: str) -> Said:
        if not self.known.answers:
            return "wrong"
        found = outcome(said, self.known.answers)
        if self.known.wants_all:
            return "right" if self._says_all(said) else "near" if found in (*RIGHT, "near") else "wrong"
        return "right" if found in RIGHT else "near" if found == "near" else "wrong"

    def passage(self, sentence_id: int) -> Said:
        document, said = self.passages[sentence_id]
        if not self.known.answers or document != self.known.document:
            return "wrong"
        return "right" if self._says_all(said) else "wrong"

    def _says_all(self, said: str) -> bool:
        words = f" {normalised(said)} "
        there = [f" {normalised(answer)} " in words for answer in self.known.answers]
        return all(there) if self.known.wants_all else any(there)


def of_squad(texts: RawTexts, kind: str) -> list[GoldQuestion]:
    return [GoldQuestion(one.text, kind, one.answers, one.document) for one in texts.questions]


def of_wild(texts: WildTexts) -> list[GoldQuestion]:
    return [
        GoldQuestion(one.question, one.kind, tuple(one.answers), one.file, one.all) for one in texts.questions
    ]


def read_each(
    answering: Answering, questions: Sequence[GoldQuestion], advance: Callable[[int, int | None], None]
) -> Iterator[ReadQuestion]:
    """Ask each question as the base is, and each that something answers once more as if its document were not there.

    Where another text that was read for it then says an answer, it is not known to have none, and is left out.
    """
    sentences = defaultdict[str, list[int]](list)
    with answering.kb.sessions() as session:
        for document, sentence_id in session.execute(_SENTENCES):
            sentences[document].append(sentence_id)
    for number, one in enumerate(questions, start=1):
        yield _read_question(answering, one, ())
        if one.document is not None:
            without = GoldQuestion(one.text, one.kind, (), None)
            read = _read_question(answering, without, sentences[one.document])
            if not _says_one(read, one.answers):
                yield read
        advance(number, len(questions))


def _says_one(read: ReadQuestion, answers: Sequence[str]) -> bool:
    """Tell whether a window that was read says one of these answers."""
    said = [f" {normalised(place.window.text)} " for place in read.reading.windows]
    return any(f" {normalised(answer)} " in text for answer in answers for text in said)


def _read_question(answering: Answering, known: GoldQuestion, gone: Sequence[int]) -> ReadQuestion:
    reading = answering.read_for(known.text, gone)
    passages: dict[int, tuple[str | None, str]] = {}
    with answering.kb.sessions() as session:
        for place in reading.windows:
            said = said_passages(session, place.window.sentence_id, accepted_only=None)
            source = place.window.source
            passages[place.window.sentence_id] = (
                None if source is None else source.external_id,
                said[0].text if said else place.window.text,
            )
    judged = JudgedBy(known, passages)
    return ReadQuestion(known.text, known.kind, bool(known.answers), reading, judged.span, judged.passage)
