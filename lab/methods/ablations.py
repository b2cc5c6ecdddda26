"""Answers with a part of the product left out: a way of finding sentences, the reader, or the stored facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from colmlm.kb.answers.answering import WINDOWS, Answering
from colmlm.kb.answers.candidates import BY_KEY, candidates
from colmlm.kb.answers.places import ReadPlace, best_first, every_place, weigh
from colmlm.kb.answers.records import Answer
from colmlm.kb.answers.windows import windows
from colmlm.kb.facts.reading import get_fact
from colmlm.kb.facts.records import Source
from colmlm.kb.lookup.ranking import Hit
from colmlm.kb.lookup.words import SentenceFound, WordSearch
from colmlm.lab.methods.asked_facts import with_words

KEY, WORDS, READER = "key", "words", "reader"
WHOLE = frozenset((KEY, WORDS, READER))
RANKINGS: tuple[frozenset[str], ...] = (
    WHOLE,
    frozenset((KEY, READER)),
    frozenset((WORDS, READER)),
    frozenset((KEY, WORDS)),
    frozenset((KEY,)),
)


def named(ranking: frozenset[str]) -> str:
    """Gives a ranking's parts as they are written on the command line."""
    return ",".join(part for part in (KEY, WORDS, READER) if part in ranking)


class NoWords(WordSearch):
    """Finds nothing by words."""

    def find(self, *_: object, **__: object) -> list[SentenceFound]:
        return []


@dataclass(frozen=True, slots=True)
class Ablations:
    """Answers to questions, whatever their score, by any ranking."""

    answers: Answering

    def ask(self, question: str, ranking: frozenset[str], *, any_span: bool = False) -> Answer:
        """Answers by the parts of the product in `ranking`; with `any_span` by a span that touches no fact, too."""
        if READER not in ranking:
            return self._fact(question, words=WORDS in ranking)
        places = [one for one in self._places(question, ranking) if any_span or one.facts]
        if not places:
            return _answer(question, None, 0.0, None)
        confidence = self.answers.reader.confidence
        places = best_first(places, confidence.search)
        best, score = places[0], confidence.of(weigh(question, places))
        return _answer(question, best.text, score, best.window.source_of(best.start, best.end))

    def _fact(self, question: str, *, words: bool) -> Answer:
        hits = self._hits(question)
        ordered = with_words(self.answers, question, hits) if words else [(hit, hit.score) for hit in hits]
        if not ordered:
            return _answer(question, None, 0.0, None)
        hit, score = ordered[0]
        with self.answers.kb.sessions() as session:
            return _answer(question, hit.value, score, get_fact(session, hit.fact_id).source)

    def _hits(self, question: str) -> Sequence[Hit]:
        assert self.answers.questions is not None
        _, (lookup,) = self.answers.questions.ask([question], k=BY_KEY, threshold=-1.0)
        return lookup.hits

    def _places(self, question: str, ranking: frozenset[str]) -> Iterator[ReadPlace]:
        hits = self._hits(question) if KEY in ranking else ()
        words = self.answers.kb.words if WORDS in ranking else NoWords()
        with self.answers.kb.sessions() as session:
            found = candidates(session, words, question, hits)[:WINDOWS]
            read = windows(session, [one.sentence_id for one in found])
        return every_place(self.answers.reader, question, found, read)


def _answer(question: str, said: str | None, score: float, source: Source | None) -> Answer:
    return Answer(question, said, score, 0.0, (), source, False, (), 0)
