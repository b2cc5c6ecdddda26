"""Answers questions: finds sentences, has the best of them read, and decides last what is live.

1. The question's query finds facts, its words find sentences; the best few sentences become windows.
2. The reader scores the spans of every window, also those of deleted facts. Facts that nobody has accepted are left out
   if only accepted ones may answer.
3. The best span that touches a fact is the answer; of two that contradict, a rule prefers one. If the best span touches
   a deleted fact, the answer abstains: the runner-up would reveal what was deleted, or be said in its stead.
4. Below the threshold the answer abstains, unless this is the question of an accepted fact.
5. The windows are read again, in one statement after the reader is done. If one has changed, all begins again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, Unpack

from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.answers.calibrations import confidence_of_base
from colmlm.kb.answers.candidates import (
    BY_KEY,
    CandidateSentence,
    candidate_sentences,
    facts_in_sentences,
    nearness_of,
)
from colmlm.kb.answers.places import (
    ReadPlace,
    best_windows,
    forgotten_by_question,
    order_places,
    passages_to_read,
    place_of_own_question,
    places_in,
    read_every_place,
    settle_contradictions,
    weigh_passage,
    weigh_span,
)
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.records import (
    PASSAGE,
    Answer,
    AnsweredQuestion,
    NearbyPassage,
    SaidFact,
    SaidPart,
)
from colmlm.kb.answers.windows import (
    FactInWindow,
    SaidWindow,
    is_unchanged,
    read_facts_without_sentence,
    read_windows,
    said_passages,
)
from colmlm.kb.errors import InvalidQuery, NoActiveKeyset
from colmlm.kb.facts.reading import get_fact, require_corpus, version_origins
from colmlm.kb.log import audit
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.lookup.options import USUAL_FACTS, AnswerOptions, FactFilter, FullAnswerOptions
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.lookup.records import AskedQuery, Hit, Ranking
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.principal import scope_of_caller
from colmlm.kb.store.store import require_primary
from colmlm.kb.texts.alike import compare_wording
from colmlm.kb.texts.asked import OF_SEVERAL_WORDS, asks_to_compare, form_of

WINDOWS = 6  # read for a question
ATTEMPTS = 5
MAX_QUESTION = 2_000  # characters
SURE = 0.99  # the score of a fact that was accepted as the answer to the question asked; a threshold of 1 silences all


@dataclass(frozen=True, slots=True)
class QuestionReading:
    """The likely spans that a reader found: those that touch a fact (`places`), the best of each window, and all."""

    places: list[ReadPlace]
    windows: list[ReadPlace]
    every: list[ReadPlace]


class SaidPassage(NamedTuple):
    """A passage, with the probability (`score`) that it answers the question."""

    window: SaidWindow
    score: float


@dataclass(frozen=True, slots=True)
class Answering:
    """Answers questions from a knowledge base. Without `questions`, which encodes them, only words find sentences."""

    kb: SearchableStore
    questions: Questions | None
    reader: JudgedReader
    sentences: SentenceEmbedder | None = None

    def ask(self, question: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer a question with words of a document, or abstain if nothing stored answers it.

        Raises `InvalidQuery` for a question that is blank or too long, or a threshold that is no probability, and
        `CorpusNotFound`.
        """
        return self.answer_in_mode(question, "read", **options).answer

    def ids_of_answer(self, question: str, **options: Unpack[AnswerOptions]) -> list[int]:
        """Give the ids of the facts in the answer to a question; none if it abstains."""
        return [fact.fact_id for fact in self.ask(question, **options).facts]

    def answer_in_mode(self, question: str, mode: str, **options: Unpack[AnswerOptions]) -> AnsweredQuestion:
        """Answer by the reader (mode "read") or by the nearest key ("paper"); give what is stored of it, too."""
        wanted = self._read_options(options)
        asked = self._ask_by_key(question, wanted) if mode == "paper" else self._ask_reader(question, wanted)
        return replace(asked, answer=self._add_enterers(asked.answer))

    def _add_enterers(self, answer: Answer) -> Answer:
        """Add to the facts of an answer who entered a value that their document does not say, and by which change."""
        with self.kb.sessions() as session:
            origins = version_origins(session, [(fact.fact_id, fact.version) for fact in answer.facts])
        entered = {key: one for key, one in origins.items() if one.document_says is not None}
        return replace(
            answer,
            facts=tuple(
                replace(fact, entered_by=one.actor, entered_seq=one.given_seq)
                if (one := entered.get((fact.fact_id, fact.version)))
                else fact
                for fact in answer.facts
            ),
        )

    def _read_options(self, options: AnswerOptions) -> FullAnswerOptions:
        """Complete the options of a question with defaults. Raises `CorpusNotFound`."""
        wanted = FullAnswerOptions(**options)
        if wanted.corpora:
            with self.kb.sessions() as session:
                for corpus in wanted.corpora:
                    require_corpus(session, corpus)
        return wanted

    def _ask_reader(self, question: str, wanted: FullAnswerOptions) -> AnsweredQuestion:
        threshold = wanted.threshold
        _check(question, threshold)
        query, near = self._find_nearest_facts(question, wanted.fact_filter)
        for _ in range(ATTEMPTS):
            found, read = self._windows(question, query, near, wanted.fact_filter)
            reading = self.read_sentences(question, found, read)
            with self.kb.sessions() as session:
                require_primary(session)
                seq = audit.head_seq(session)
                least = confidence_of_base(session, self.reader).threshold if threshold is None else threshold
                contested = settle_contradictions(session, reading.places, self.reader.confidence.search)
                ids = [one.sentence_id for one in found]
                now = read_windows(session, ids, fact_filter=wanted.fact_filter)
                passage, is_gone = self._passage(session, question, reading, least, wanted.fact_filter)
                own = place_of_own_question(session, question, wanted.fact_filter)
                forgotten = forgotten_by_question(session, question, wanted.fact_filter, near.tombstone)
            if all(is_unchanged(read[one.sentence_id], now) for one in found):
                break
        else:
            raise InvalidQuery("the nearest texts keep changing. Ask again")
        passages = tuple(nearby_passages(found, read, reading.every)[: wanted.nearest])
        score = (
            self.reader.confidence.probability_of(weigh_span(question, reading.places))
            if reading.places
            else 0.0
        )
        answer = self._answer_from_places(question, contested, score, least, passages, seq)
        answer = replace(answer, withheld=answer.withheld or (is_gone and answer.abstained))
        by_passage = passage is not None and _is_passage_better(question, answer, contested)
        said = self._answer_from_passage(answer, passage) if passage is not None and by_passage else answer
        is_comparison = asks_to_compare(question)
        if own is not None and least <= SURE and (is_comparison or not _has_own_fact(said, own)):
            answer = self._answer_from_places(question, [own], SURE, least, passages, seq)
            return _answered_from_place(answer, query, own)
        if forgotten is not None and least <= SURE:
            return AnsweredQuestion(self._abstain(replace(answer, withheld=True)), query, under=(forgotten,))
        if is_comparison:
            return AnsweredQuestion(self._abstain(replace(answer, withheld=False), is_comparison=True), query)
        if passage is not None and by_passage:
            return AnsweredQuestion(
                said, query, parts_of_span(passage.window, 0, len(passage.window.text)),
                passage.window.text, tuple(fact.fact_id for fact in passage.window.facts), asked_at=least,
            )  # fmt: skip
        if answer.abstained:
            answer = self._abstain(answer)
        return (
            _answered_from_place(answer, query, contested[0])
            if contested
            else AnsweredQuestion(answer, query)
        )

    def _abstain(self, answer: Answer, *, is_comparison: bool = False) -> Answer:
        """Turn an answer into one that abstains, with the reason."""
        with self.kb.sessions() as session:
            why = why_silent(session, answer, is_comparison=is_comparison)
        return replace(answer, answer=None, facts=(), source=None, why=why)

    def read_sentences(
        self, question: str, found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow]
    ) -> QuestionReading:
        """Have the windows of these sentences read for a question, and give the likely places in them."""
        return self._reading_of(read_every_place(self.reader, question, found, read))

    def _reading_of(self, found: Iterable[ReadPlace]) -> QuestionReading:
        search, every = self.reader.confidence, list(found)
        places = order_places([one for one in every if one.facts], search.search)
        of_passages = search.passage.search if search.passage else search.search
        return QuestionReading(places, best_windows(every, of_passages), every)

    def _passage(
        self,
        session: Session,
        question: str,
        reading: QuestionReading,
        threshold: float,
        fact_filter: FactFilter,
        as_of: int | None = None,
    ) -> tuple[SaidPassage | None, bool]:
        """Give the passage of the best window, or None; and whether it was probable enough but holds something deleted.

        The `threshold` of spans sets how probable it must be. If a fact in the passage is deleted, the best sentence is
        tried alone.
        """
        model = self.reader.confidence.passage
        if model is None or not reading.windows:
            return None, False
        score = model.probability_of(weigh_passage(question, reading.windows, reading.every))
        if score < self.reader.confidence.passage_threshold(threshold):
            return None, False
        if reading.windows[0].is_dead:
            return None, True
        sentence_id = reading.windows[0].window.sentence_id
        said = said_passages(session, sentence_id, fact_filter=fact_filter, as_of=as_of)
        window = next((one for one in said if one.may_be_said), None)
        return (None if window is None else SaidPassage(window, score)), window is None

    def ask_as_of(
        self, question: str, seq: int, *, mode: str = "read", **options: Unpack[AnswerOptions]
    ) -> Answer:
        """Answer a question with the facts and values as of change `seq`, and with the present threshold.

        Only documents that are current now are read, not texts that were replaced since. Raises what `Lookups.as_of`
        and its lookups do, and `InvalidQuery` in the mode "paper" or for accepted facts alone.
        """
        if mode != "read":
            raise InvalidQuery("the mode has no effect on a question about the past. Leave out the mode")
        wanted = self._read_options(options)
        fact_filter = wanted.fact_filter.of_past()
        threshold = wanted.threshold
        _check(question, threshold)
        if self.questions is None:
            raise NoActiveKeyset
        hits = self.questions.nearest_as_of(question, BY_KEY, seq, fact_filter)
        found, read = self._windows_then(question, seq, hits, fact_filter)
        reading = self.read_sentences(question, found, read)
        places = reading.places
        score = self.reader.confidence.probability_of(weigh_span(question, places)) if places else 0.0
        with self.kb.sessions() as session:
            least = confidence_of_base(session, self.reader).threshold if threshold is None else threshold
            passage, is_gone = self._passage(session, question, reading, least, fact_filter, as_of=seq)
            near = [hit.fact_id for hit in hits]
            own = place_of_own_question(session, question, fact_filter, as_of=seq, near=near)
            contested = settle_contradictions(session, places, self.reader.confidence.search, seq)
            forgotten = forgotten_by_question(session, question, fact_filter, as_of=seq)
        passages = tuple(nearby_passages(found, read, reading.every)[: wanted.nearest])
        answer = self._answer_from_places(question, contested, score, least, passages, seq)
        answer = replace(answer, withheld=answer.withheld or (is_gone and answer.abstained))
        is_better = passage is not None and _is_passage_better(question, answer, contested)
        said = self._answer_from_passage(answer, passage) if passage is not None and is_better else answer
        is_comparison = asks_to_compare(question)
        if own is not None and least <= SURE and (is_comparison or not _has_own_fact(said, own)):
            said = self._answer_from_places(question, [own], SURE, least, passages, seq)
            return self._add_enterers(said)
        if forgotten is not None and least <= SURE:
            return self._abstain(replace(answer, withheld=True))
        if is_comparison:
            return self._abstain(replace(answer, withheld=False), is_comparison=True)
        return self._abstain(said) if said.abstained else self._add_enterers(said)

    def _windows_then(
        self, question: str, seq: int, hits: Sequence[Hit], fact_filter: FactFilter
    ) -> tuple[list[CandidateSentence], dict[int, SaidWindow]]:
        """Find the nearest sentences and read their windows as of a change, without those that had no fact then."""
        with self.kb.sessions() as session:
            found = candidate_sentences(
                session, self.kb.words, question, hits, fact_filter=fact_filter, encoder=self.sentences
            )[: 2 * WINDOWS]
            ids = [one.sentence_id for one in found]
            read = read_windows(session, ids, fact_filter=fact_filter, as_of=seq)
            alone = read_facts_without_sentence(session, [hit.fact_id for hit in hits], seq)
        for hit in hits:
            if -hit.fact_id in alone:
                nearness = nearness_of(hit.score, median(one.score for one in hits))
                likeness = None if self.sentences is None else hit.score
                found.append(CandidateSentence(-hit.fact_id, hit.score, nearness, 0.0, likeness))
        found, read = sorted(found, key=lambda one: -one.score), read | alone
        kept = [one for one in found if one.sentence_id in read and read[one.sentence_id].facts]
        return kept[:WINDOWS], read

    def read_question(self, question: str, gone: Collection[int] = ()) -> QuestionReading:
        """Find the places for a question as if the sentences `gone` (ids) were not in the base; choose no answer."""
        return self.read_questions([(question, gone)])[0]

    def read_questions(self, asked: Sequence[tuple[str, Collection[int]]]) -> list[QuestionReading]:
        """Find the places for pairs of question and `gone`, as `read_question` does, by one call of the reader."""
        windows = []
        for question, gone in asked:
            query, near = self._find_nearest_facts(question, FactFilter(without=self._facts_in(gone)))
            windows.append(self._windows(question, query, near, gone=gone))
        readings = self.reader.read_all(
            [(question, passages_to_read(*one)) for (question, _), one in zip(asked, windows, strict=True)]
        )
        return [
            self._reading_of(places_in(found, read, read_so))
            for (found, read), read_so in zip(windows, readings, strict=True)
        ]

    def likeliest_passage(self, question: str, reading: QuestionReading) -> SaidPassage | None:
        """Give the best passage for a question, however improbable; None if none may be shown."""
        with self.kb.sessions() as session:
            return self._passage(session, question, reading, 0.0, USUAL_FACTS)[0]

    def window_texts(self, question: str, **options: Unpack[AnswerOptions]) -> list[str]:
        """Give the texts of the windows that are read for a question, with deleted values masked."""
        fact_filter = FullAnswerOptions(**options).fact_filter
        query, near = self._find_nearest_facts(question, fact_filter)
        _, read = self._windows(question, query, near, fact_filter)
        return [window.shown_text() for window in read.values()]

    def nearest_hits(self, question: str, **options: Unpack[AnswerOptions]) -> tuple[Hit, ...]:
        """Give the live facts nearest to the question by key, whatever the threshold, best first."""
        return self._find_nearest_facts(question, FullAnswerOptions(**options).fact_filter)[1].hits

    def nearest_fact(self, question: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer as the paper does: with the value of the fact nearest to the question's query, by its key alone.

        `threshold` is a cosine (None: the keyset's), and so is `score`. No reader is asked. Raises `NoActiveKeyset`.
        """
        return self.answer_in_mode(question, "paper", **options).answer

    def _ask_by_key(self, question: str, wanted: FullAnswerOptions) -> AnsweredQuestion:
        if self.questions is None:
            raise NoActiveKeyset
        query, lookup = self.questions.nearest_one(question, wanted.threshold, wanted.fact_filter)
        hit = next(iter(lookup.hits), None)
        if hit is None:
            best, withheld = lookup.runner_up or 0.0, lookup.abstained is not None
            nothing = Answer(question, None, best, lookup.threshold, (), None, withheld, (), lookup.seq)
            under = () if lookup.abstained is None else (lookup.abstained,)
            return AnsweredQuestion(nothing, query, under=under)
        said = SaidFact(hit.fact_id, hit.version, hit.value, hit.review)
        with self.kb.sessions() as session:
            source = get_fact(session, hit.fact_id).source
        answer = Answer(
            question, hit.value, hit.score, lookup.threshold, (said,), source, False, (), lookup.seq
        )
        whole = (0, len(hit.value))
        part = SaidPart(hit.fact_id, hit.version, *whole, *whole)
        return AnsweredQuestion(answer, query, (part,), hit.value, (hit.fact_id,))

    def _find_nearest_facts(
        self, question: str, fact_filter: FactFilter = USUAL_FACTS
    ) -> tuple[AskedQuery | None, Ranking]:
        """Give a question's query and the facts nearest to it by key; None and no facts where there are no keys."""
        if self.questions is None:
            return None, Ranking()
        try:
            return self.questions.nearest(question, BY_KEY, fact_filter)
        except NoActiveKeyset:
            return None, Ranking()

    def _facts_in(self, sentence_ids: Collection[int]) -> frozenset[int]:
        if not sentence_ids:
            return frozenset()
        with self.kb.sessions() as session:
            return facts_in_sentences(session, sentence_ids)

    def _windows(
        self,
        question: str,
        query: AskedQuery | None,
        near: Ranking,
        fact_filter: FactFilter = USUAL_FACTS,
        gone: Collection[int] = (),
    ) -> tuple[list[CandidateSentence], dict[int, SaidWindow]]:
        with self.kb.sessions() as session:
            found = candidate_sentences(
                session,
                self.kb.words,
                question,
                near.hits,
                near.tombstone,
                gone,
                asked=query,
                fact_filter=fact_filter,
                encoder=self.sentences,
            )[:WINDOWS]
            read = read_windows(session, [one.sentence_id for one in found], fact_filter=fact_filter)
        return [one for one in found if one.sentence_id in read], read

    def _answer_from_places(
        self,
        question: str,
        places: Sequence[ReadPlace],
        score: float,
        threshold: float,
        nearest: tuple[NearbyPassage, ...],
        seq: int,
    ) -> Answer:
        answer = Answer(question, None, score, threshold, (), None, False, nearest, seq)
        if not places:
            return answer
        best = places[0]
        if best.is_dead or score < threshold:
            return replace(answer, withheld=best.is_dead and score >= threshold)
        facts, source = (
            tuple(fact.said_fact for fact in best.facts),
            best.window.source_of(best.start, best.end),
        )
        return replace(answer, answer=best.text, facts=facts, source=source)

    def _answer_from_passage(self, answer: Answer, passage: SaidPassage) -> Answer:
        window = passage.window
        return replace(
            answer,
            answer=window.text,
            score=passage.score,
            threshold=self.reader.confidence.passage_threshold(answer.threshold),
            facts=tuple(fact.said_fact for fact in window.facts),
            source=window.source,
            withheld=False,
            grain=PASSAGE,
        )


def _has_own_fact(answer: Answer, own: ReadPlace) -> bool:
    """Tell whether an answer has a fact of `own`, the place of the fact with this very question, or says its text."""
    if answer.answer is None:
        return False
    ids = {fact.fact_id for fact in answer.facts}
    return (
        any(fact.fact_id in ids for fact in own.facts) or compare_wording(own.text, answer.answer) == "same"
    )


def _answered_from_place(answer: Answer, query: AskedQuery | None, place: ReadPlace) -> AnsweredQuestion:
    parts = () if answer.abstained else parts_of_span(place.window, place.start, place.end)
    return AnsweredQuestion(answer, query, parts, place.text, tuple(fact.fact_id for fact in place.facts))


def _is_passage_better(question: str, answer: Answer, contested: Sequence[ReadPlace]) -> bool:
    """Tell whether the passage is the better answer: if no span answers, or the question asks for several words.

    It is not if no span answers because the best one (`contested[0]`) touches a deleted fact.
    """
    if answer.abstained:
        return not (contested and contested[0].is_dead)
    return form_of(question) in OF_SEVERAL_WORDS


def _check(question: str, threshold: float | None) -> None:
    if not question.strip():
        raise InvalidQuery("the question is blank")
    if len(question) > MAX_QUESTION:
        raise InvalidQuery(f"the question has {len(question):,} characters. Give at most {MAX_QUESTION:,}")
    if threshold is not None and not 0 <= threshold <= 1:
        raise InvalidQuery(f"the threshold {threshold} is not a probability, from 0 to 1")


# Parts: the facts in an answer, with the part of its value that it says of each, and where its document says
# that.


def parts_of_span(window: SaidWindow, start: int, end: int) -> tuple[SaidPart, ...]:
    """Give the parts of facts that a span of a window contains, in order. None of the facts may be deleted."""
    return tuple(_part(window, fact, start, end) for fact in window.facts_overlapping(start, end))


def _part(window: SaidWindow, fact: FactInWindow, start: int, end: int) -> SaidPart:
    first, last = max(fact.start, start), min(fact.end, end)
    begins = fact.value.index(window.text[fact.start : fact.end])  # not 0 where the window cuts the fact
    shift, place = begins - fact.start, window.source_of(first, last)
    return SaidPart(
        fact_id=fact.fact_id,
        version=fact.said_fact.version,
        start=first - start,
        end=last - start,
        part_start=first + shift,
        part_end=last + shift,
        quoted_start=place.start if place else None,
        quoted_end=place.end if place else None,
    )


# Nearby passages: the texts that were read for a question, as they are shown, each stretch of a document
# once.


def nearby_passages(
    found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow], places: Sequence[ReadPlace]
) -> list[NearbyPassage]:
    """Give the windows of sentences as passages, nearest first, without those within another; mark likeliest words."""
    likeliest: dict[int, ReadPlace] = {}
    for place in sorted(places, key=lambda one: one.margin):
        likeliest[place.window.sentence_id] = place
    marked = {key: (one.start, one.end) for key, one in likeliest.items() if not one.is_dead}
    return [
        _nearby_passage(one, read[one.sentence_id], marked.get(one.sentence_id, (None, None)))
        for one in found
        if not any(_is_within(read[one.sentence_id], other) for other in _others(one, found, read))
    ]


def _others(
    one: CandidateSentence, found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow]
) -> Iterator[SaidWindow]:
    return (read[other.sentence_id] for other in found if other is not one)


def _is_within(window: SaidWindow, other: SaidWindow) -> bool:
    """Tell whether a window is a part of another one of its document."""
    ours, theirs = window.source, other.source
    if ours is None or theirs is None or ours == theirs:
        return False
    same = (ours.corpus, ours.external_id) == (theirs.corpus, theirs.external_id)
    return same and theirs.start <= ours.start and ours.end <= theirs.end


def _nearby_passage(
    candidate: CandidateSentence, window: SaidWindow, likeliest: tuple[int | None, int | None]
) -> NearbyPassage:
    live = tuple(fact.said_fact for fact in window.facts if fact.version is not None)
    score = (
        candidate.score if scope_of_caller() is None else 0.0
    )  # it tells how often words are in other corpora
    return NearbyPassage(window.shown_text(), window.source_of(0, len(window.text)), score, live, *likeliest)


# Why nothing is said to a question, in a sentence that tells whoever asked what to do about it.

DELETED = "What would answer it was deleted."
COMPARES = "It asks to compare, and an answer quotes one place. What is said of each is in the passages."
NOT_LATIN = "It is asked in other letters than English has, and only English is read here."

_WORD = re.compile(r"[^\W\d_]+")
_FEWEST = 2  # words of grammar that tell a language
# The words of grammar of a language are those that its dictionary drops.
_LANGUAGES = text("""
SELECT initcap(language) AS language, count(*) AS number
FROM unnest(ARRAY['english', 'german', 'french', 'spanish', 'italian', 'portuguese', 'dutch', 'swedish', 'danish',
                  'norwegian', 'finnish', 'hungarian', 'turkish']) AS language
CROSS JOIN unnest(CAST(:words AS text[])) AS word
WHERE ts_lexize(CAST('pg_catalog.' || language || '_stem' AS regdictionary), word) = '{}'
GROUP BY language ORDER BY number DESC, language
""")


def why_silent(session: Session, answer: Answer, *, is_comparison: bool) -> str | None:
    """Give the reason why an answer abstains, as a sentence; None if the search found no place at all."""
    if answer.withheld:
        return DELETED
    if is_comparison:
        return COMPARES
    if (foreign := language_note(session, answer.question)) is not None:
        return foreign
    if answer.score:
        return f"The likeliest place scores {answer.score:.2f}, and an answer needs {answer.threshold:.2f}."
    return None


def language_note(session: Session, question: str) -> str | None:
    """Say in a sentence that a question is not in English; None if that is not certain."""
    letters = [character for character in question if character.isalpha()]
    latin = sum(unicodedata.name(character, "").startswith("LATIN") for character in letters)
    if letters and latin < len(letters) / 2:
        return NOT_LATIN
    words = sorted({word.casefold() for word in _WORD.findall(question)})
    counted = {row.language: row.number for row in session.execute(_LANGUAGES, {"words": words})}
    of_english = counted.pop("English", 0)
    language, number = next(iter(counted.items()), ("", 0))
    if number < _FEWEST or number <= 2 * of_english:
        return None
    return f"It seems to be asked in {language}, and only English is read here."
