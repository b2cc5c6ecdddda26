"""Answers with a part of the product left out: a way of finding sentences, the reader, or the stored facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.answering import WINDOWS, Answering
from colmlm.kb.answers.candidates import BY_KEY, WEIGHT_OF_WORDS, candidate_sentences, sentences_of
from colmlm.kb.answers.places import ReadPlace, order_places, read_every_place, weigh_span
from colmlm.kb.answers.records import Answer, SaidFact
from colmlm.kb.answers.windows import read_windows
from colmlm.kb.facts.reading import get_fact
from colmlm.kb.facts.records import FactRecord, Source
from colmlm.kb.lookup.options import KEY, READER, WORDS
from colmlm.kb.lookup.records import Hit
from colmlm.kb.lookup.searchable import SentenceFound, WordSearch
from colmlm.model.decoding.config import DecodeConfig
from colmlm.model.decoding.decoder import Decoder

WHOLE = frozenset((KEY, WORDS, READER))
RANKINGS: tuple[frozenset[str], ...] = (
    WHOLE,
    frozenset((KEY, READER)),
    frozenset((WORDS, READER)),
    frozenset((KEY, WORDS)),
    frozenset((KEY,)),
)


def format_ranking(ranking: frozenset[str]) -> str:
    """Write a ranking's parts as on the command line, such as "key,words,reader"."""
    return ",".join(part for part in (KEY, WORDS, READER) if part in ranking)


class NoWords(WordSearch):
    """Finds nothing by words."""

    def find(self, *_: object, **__: object) -> list[SentenceFound]:
        return []


@dataclass(frozen=True, slots=True)
class Ablations:
    """Answers to questions, whatever their score, by any ranking."""

    answers: Answering

    def answer_by(self, question: str, ranking: frozenset[str], *, any_span: bool = False) -> Answer:
        """Answer by only the parts of the product in `ranking`; with `any_span`, spans without a fact answer, too."""
        if READER not in ranking:
            return self._fact(question, words=WORDS in ranking)
        places = [one for one in self._places(question, ranking) if any_span or one.facts]
        if not places:
            return _make_answer(question, None, 0.0, None)
        confidence = self.answers.reader.confidence
        places = order_places(places, confidence.search)
        best, score = places[0], confidence.probability_of(weigh_span(question, places))
        return _make_answer(question, best.text, score, best.window.source_of(best.start, best.end))

    def _fact(self, question: str, *, words: bool) -> Answer:
        hits = self._hits(question)
        ordered = with_words(self.answers, question, hits) if words else [(hit, hit.score) for hit in hits]
        if not ordered:
            return _make_answer(question, None, 0.0, None)
        hit, score = ordered[0]
        with self.answers.kb.sessions() as session:
            return _make_answer(question, hit.value, score, get_fact(session, hit.fact_id).source)

    def _hits(self, question: str) -> Sequence[Hit]:
        assert self.answers.questions is not None
        _, (lookup,) = self.answers.questions.ask([question], k=BY_KEY, threshold=-1.0)
        return lookup.hits

    def _places(self, question: str, ranking: frozenset[str]) -> Iterator[ReadPlace]:
        hits = self._hits(question) if KEY in ranking else ()
        words = self.answers.kb.words if WORDS in ranking else NoWords()
        with self.answers.kb.sessions() as session:
            found = candidate_sentences(session, words, question, hits)[:WINDOWS]
            read = read_windows(session, [one.sentence_id for one in found])
        return read_every_place(self.answers.reader, question, found, read)


def _make_answer(question: str, said: str | None, score: float, source: Source | None) -> Answer:
    return Answer(question, said, score, 0.0, (), source, False, (), 0)


# How often a question finds its own fact: by key, by key and words, and by what the reader answers.
#
# Each way orders the facts that it finds for a question. A fact that is not among them counts as found
# nowhere.

BY_THE_KEY, BY_KEY_AND_WORDS, READ = "key", "key and words", "reader"


@dataclass(frozen=True, slots=True)
class OwnFactShares:
    """Shares in [0, 1] of the questions: their own fact comes first, among the first ten; one of its value first."""

    questions: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    value_at_1: float


def shares_found(
    answers: Answering, facts: Sequence[FactRecord], advance: Callable[[int, int | None], None]
) -> dict[str, OwnFactShares]:
    """Ask the question of each fact, which must have one, and give the shares by the way of finding it."""
    values: dict[int, str] = {}
    ranks: dict[str, list[int | None]] = {BY_THE_KEY: [], BY_KEY_AND_WORDS: [], READ: []}
    is_first: dict[str, list[bool]] = {name: [] for name in ranks}
    for done, fact in enumerate(facts, start=1):
        assert fact.question is not None
        for name, found in _orders(answers, fact.question, values).items():
            ranks[name].append(found.index(fact.fact_id) + 1 if fact.fact_id in found else None)
            is_first[name].append(bool(found) and _fold_value(values[found[0]]) == _fold_value(fact.value))
        advance(done, len(facts))
    return {name: _shares(ranks[name], is_first[name]) for name in ranks}


def _orders(answers: Answering, question: str, values: dict[int, str]) -> Mapping[str, list[int]]:
    assert answers.questions is not None
    _, (lookup,) = answers.questions.ask([question], k=BY_KEY, threshold=-1.0)
    values |= {hit.fact_id: hit.value for hit in lookup.hits}
    return {
        BY_THE_KEY: [hit.fact_id for hit in lookup.hits],
        BY_KEY_AND_WORDS: [hit.fact_id for hit, _ in with_words(answers, question, lookup.hits)],
        READ: list(dict.fromkeys(_overlapped_fact_ids(answers.read_question(question).places, values))),
    }


def with_words(answers: Answering, question: str, hits: Sequence[Hit]) -> list[tuple[Hit, float]]:
    """Order hits by the sum of their score and the weighted score of their sentences' words; give it with each hit."""
    with answers.kb.sessions() as session:
        of = sentences_of(session, [hit.fact_id for hit in hits])
        share = {
            one.sentence_id: one.words
            for one in candidate_sentences(session, answers.kb.words, question, hits)
        }
    scored = [(hit, hit.score + WEIGHT_OF_WORDS * share.get(of.get(hit.fact_id, 0), 0.0)) for hit in hits]
    return sorted(scored, key=lambda one: -one[1])


def _overlapped_fact_ids(places: Sequence[ReadPlace], values: dict[int, str]) -> Iterator[int]:
    """Yield the live facts that the places overlap: of each place first the fact that it overlaps most."""
    for place in places:
        live = [fact for fact in place.facts if fact.version is not None]
        values |= {fact.fact_id: fact.value for fact in live}
        shared = {fact.fact_id: min(place.end, fact.end) - max(place.start, fact.start) for fact in live}
        yield from sorted(shared, key=lambda fact_id: (-shared[fact_id], fact_id))


def _shares(ranks: Sequence[int | None], is_first: Sequence[bool]) -> OwnFactShares:
    number = len(ranks)
    return OwnFactShares(
        questions=number,
        recall_at_1=round(sum(rank == 1 for rank in ranks) / number, 4),
        recall_at_10=round(sum(rank is not None and rank <= 10 for rank in ranks) / number, 4),
        mrr=round(sum(1 / rank for rank in ranks if rank is not None) / number, 4),
        value_at_1=round(sum(is_first) / number, 4),
    )


def _fold_value(value: str) -> str:
    return " ".join(value.casefold().split())


# Answers of the decoder: what it splices first behind a question, by a ranking of its lookups.

MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Decoding:
    """Asks the decoder of a runtime, at the lowest threshold; an answer's score is that of the fact."""

    runtime: Runtime

    def threshold(self, ranking: str) -> float:
        """Give the threshold that holds for a ranking by default."""
        if ranking == READER:
            return self.runtime.reader.confidence.threshold
        return self.runtime.kb.keysets.active().threshold

    def answer_by(self, question: str, ranking: str) -> Answer:
        """Write behind ``Question: ... Answer:`` in mode forced, up to the first fact."""
        decoder = Decoder(self.runtime.checkpoint, self.runtime.lookups)
        config = DecodeConfig(
            mode="forced",
            max_tokens=MAX_TOKENS,
            threshold=-1.0,
            until_hit=True,
            on_miss="abstain",
            ranking=ranking,
        )
        (told,) = decoder.generate([f"Question: {question} Answer:"], config)
        first = told.splices[0]
        if first.fact_id is None or first.version is None or first.score is None:
            return Answer(
                question, None, 0.0, -1.0, (), None, first.outcome == "abstained", (), told.seq or 0
            )
        value = told.output[first.output_start : first.output_end]
        with self.runtime.kb.sessions() as session:
            source = get_fact(session, first.fact_id).source
        said = (SaidFact(first.fact_id, first.version, value),)
        return Answer(question, value, first.score, -1.0, said, source, False, (), told.seq or 0)
