"""Places: the spans of windows that a reader would answer with, ordered and weighed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from colmlm.kb.answers.candidates import CandidateSentence, sentences_of
from colmlm.kb.answers.reading import JudgedReader, Passage, PassageEvidence, PassageReading, PlaceEvidence
from colmlm.kb.answers.windows import (
    FactInWindow,
    SaidWindow,
    read_facts_without_sentence,
    read_windows,
)
from colmlm.kb.facts.pairs import yields_then
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.lookup.options import INSIDE, FactFilter
from colmlm.kb.texts.alike import compare_wording
from colmlm.kb.texts.asked import OF_SEVERAL_WORDS, form_of
from colmlm.kb.texts.structure import is_section_number

_WORD = re.compile(r"\w+")
_BLANK_LINE = "\n\n"  # between paragraphs, so that what stands on both sides is no one answer


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A span of a window: the reader's `margin` in logits, the sentence, its rank from 0, and the facts in the span."""

    window: SaidWindow
    candidate: CandidateSentence
    rank: int
    start: int
    end: int
    margin: float
    facts: tuple[FactInWindow, ...]

    @property
    def text(self) -> str:
        return self.window.text[self.start : self.end]

    @property
    def is_dead(self) -> bool:
        return any(fact.version is None for fact in self.facts)


def read_every_place(
    reader: JudgedReader, question: str, found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow]
) -> Iterator[ReadPlace]:
    """Have the windows of these sentences read, and yield every likely span, also those without a fact."""
    if found:
        yield from places_in(found, read, reader.read(question, passages_to_read(found, read)))


def passages_to_read(found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow]) -> list[Passage]:
    """Give the windows of these sentences as passages for the reader, in the order of the sentences."""
    return [Passage(read[one.sentence_id].title, read[one.sentence_id].text) for one in found]


def places_in(
    found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow], readings: Sequence[PassageReading]
) -> Iterator[ReadPlace]:
    """Yield every likely span of these windows from the reader's readings of them."""
    for rank, (candidate, reading) in enumerate(zip(found, readings, strict=True)):
        window = read[candidate.sentence_id]
        for start, end, logit in reading.spans:
            if window.source is None and start < window.facts[0].start:
                continue  # it begins in the question of a fact without a document, which is no answer
            if MARK in window.text[start:end]:
                continue  # a part of it was erased, so the rest is not what the document said there
            if is_section_number(window.text, start, end) or _BLANK_LINE in window.text[start:end]:
                continue
            facts = window.facts_overlapping(start, end)
            yield ReadPlace(window, candidate, rank, start, end, logit - reading.none, facts)


def order_places(places: Sequence[ReadPlace], search: float) -> list[ReadPlace]:
    """Order places by their merit, best first; `search` weighs the search's score against the reader's."""
    return sorted(places, key=lambda one: -merit_of_place(one, search))


def merit_of_place(place: ReadPlace, search: float) -> float:
    """Give a place's merit: the reader's margin plus the search's score times the weight `search`."""
    return place.margin + search * place.candidate.score


def best_windows(places: Sequence[ReadPlace], search: float) -> list[ReadPlace]:
    """Give the place with the greatest margin in each window of a document, the best window first."""
    best: dict[int, ReadPlace] = {}
    for place in places:
        if place.window.source is None:
            continue
        known = best.get(place.window.sentence_id)
        if known is None or place.margin > known.margin:
            best[place.window.sentence_id] = place
    return order_places(list(best.values()), search)


def weigh_passage(
    question: str, windows: Sequence[ReadPlace], places: Sequence[ReadPlace]
) -> PassageEvidence:
    """Compute what judges `windows[0]` as a passage: its own scores beside the other windows and all `places` read."""
    best = windows[0]
    source = best.window.source
    assert source is not None
    elsewhere = [
        one.margin
        for one in windows[1:]
        if (other := one.window.source) is not None
        and (
            other.document_id != source.document_id or other.start >= source.end or other.end <= source.start
        )
    ]
    of_window = [one.margin for one in places if one.window.sentence_id == best.window.sentence_id]
    share = 1 / sum(math.exp(margin - best.margin) for margin in of_window)
    return PassageEvidence(
        margin=best.margin,
        lead=best.margin - max(elsewhere, default=best.margin - 10.0),
        share=share,
        nearness=best.candidate.nearness,
        words=best.candidate.words,
        likeness=best.candidate.likeness or 0.0,
        rank=float(best.rank),
        heard=_share_of_words(question, best.window),
        several=float(form_of(question) in OF_SEVERAL_WORDS),
    )


def _share_of_words(question: str, window: SaidWindow) -> float:
    asked = set(_WORD.findall(question.casefold()))
    heard = set(_WORD.findall(f"{window.title} {window.text}".casefold()))
    return len(asked & heard) / max(1, len(asked))


def weigh_span(question: str, places: Sequence[ReadPlace]) -> PlaceEvidence:
    """Compute the evidence for the first of these places against all places read, also those with deleted facts."""
    place = places[0]
    text = _plain(place.text)
    others = [one.margin for one in places if not _is_nested(text, _plain(one.text))]
    top = max(one.margin for one in places)
    total = sum(math.exp(one.margin - top) for one in places)
    same = sum(math.exp(one.margin - top) for one in places if _plain(one.text) == text)
    return PlaceEvidence(
        margin=place.margin,
        lead=place.margin - max(others, default=place.margin - 10.0),
        share=same / total,
        nearness=place.candidate.nearness,
        words=place.candidate.words,
        likeness=place.candidate.likeness or 0.0,
        rank=float(place.rank),
        heard=_share_of_words(question, place.window),
        length=min(60.0, float(len(place.text))),
    )


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _is_nested(text: str, other: str) -> bool:
    """Tell whether one text is part of the other, as nested spans of one place are."""
    return f" {text} " in f" {other} " or f" {other} " in f" {text} "


# Contested answers: which of two facts that contradict each other is the answer, where the reader likes both.
#
# Places compete where a fact in one yields to a fact in the other (the view `fact_yield`), and none is more
# than 1.0 below the best place of all, by the reader's margin and the search's score with its weight: at
# least e times less likely.

CLOSE = 1.0

_YIELDS = text("""
SELECT said.fact_id, ARRAY(
    SELECT y.to_id FROM fact_yield y WHERE y.fact_id = said.fact_id AND y.version = said.version
) AS yields_to
FROM unnest(CAST(:ids AS bigint[]), CAST(:versions AS integer[])) AS said (fact_id, version)
""")


def settle_contradictions(
    session: Session, places: list[ReadPlace], search: float, as_of: int | None = None
) -> list[ReadPlace]:
    """Move to the front the place that a rule for contradictions prefers; a first one that is deleted stays first."""
    if not places or places[0].is_dead:
        return places
    least = merit_of_place(places[0], search) - CLOSE
    near = list(takewhile(lambda one: merit_of_place(one, search) >= least, places))
    said = {fact.fact_id: fact.version for one in near for fact in one.facts if fact.version is not None}
    if len(said) < 2:
        return places
    if as_of is None:
        rows = session.execute(_YIELDS, {"ids": list(said), "versions": list(said.values())})
        yields = {row.fact_id: set(row.yields_to) for row in rows}
    else:
        yields = yields_then(session, said, as_of)
    best = places[0]
    for one in near:
        answering = {fact.fact_id for fact in one.facts}
        if not one.is_dead and any(yields[fact.fact_id] & answering for fact in best.facts):
            best = one
    return [best, *(one for one in places if one is not best)]


# Own questions: the fact that somebody accepted as the answer to the very question that is asked.
#
# A reader need not like its words: "Whom do I call about a leak?" and "Miriam Okafor" share none. Two questions are the
# same where their words are, whatever their case, blanks and punctuation (`asked_as`). Where facts of one question say
# different things, the rule for contradictions settles it. Two documents that do may speak of different things, so
# there the reader decides.

MOST_OF_QUESTION = 10  # facts that ask the same; a question that more ask tells none of them from the others

_ASKING = """
SELECT f.id AS fact_id, f.document_id, v.version, v.value, ARRAY(
    SELECT y.to_id FROM fact_yield y WHERE y.fact_id = f.id AND y.version = v.version
) AS yields_to
FROM fact f JOIN fact_version v ON v.fact_id = f.id AND STANDS
WHERE asked_as(f.question) = asked_as(:question) AND f.question IS NOT NULL AND f.review = 'accepted' AND WHICH
  AND INSIDE
""".replace("INSIDE", INSIDE)
_LIVE = _ASKING.replace("WHICH", "f.deleted_seq IS NULL")
_NOW = text(f"{_LIVE.replace('STANDS', 'v.to_seq IS NULL')} ORDER BY fact_id LIMIT :most")
_AT = "v.from_seq <= :as_of AND (v.to_seq IS NULL OR v.to_seq > :as_of)"
_THEN = text(
    f"{_LIVE} UNION {_ASKING.replace('WHICH', 'f.id = ANY(:near)')} ORDER BY fact_id LIMIT :most".replace(
        "STANDS", _AT
    )
)


def place_of_own_question(
    session: Session,
    question: str,
    fact_filter: FactFilter,
    *,
    as_of: int | None = None,
    near: Sequence[int] = (),
) -> ReadPlace | None:
    """Give the place of the live, accepted fact that has this very question.

    None if no fact has it, more than `MOST_OF_QUESTION` do, or they contradict each other and no rule prefers one. With
    `as_of` the fact was live at that change; one deleted since must be among the facts `near`.
    """
    asked = {"question": question, **fact_filter.parameters, "most": MOST_OF_QUESTION + 1}
    if as_of is None:
        rows = session.execute(_NOW, asked).all()
    else:
        rows = session.execute(_THEN, {**asked, "as_of": as_of, "near": list(near)}).all()
    rows = [row for row in rows if row.fact_id not in fact_filter.without]
    if not rows or len(rows) > MOST_OF_QUESTION:
        return None
    sentences = sentences_of(session, [row.fact_id for row in rows])
    read = read_windows(session, [*sentences.values()], fact_filter=fact_filter, as_of=as_of)
    yields = {row.fact_id: set(row.yields_to) for row in rows}
    if as_of is not None:
        read |= read_facts_without_sentence(session, [row.fact_id for row in rows], as_of)
        yields = yields_then(session, {row.fact_id: row.version for row in rows}, as_of)
    for row in rows:
        others = [one for one in rows if compare_wording(row.value, one.value) != "same"]
        if any(row.fact_id not in yields[one.fact_id] or _is_in_another_document(row, one) for one in others):
            continue
        window = read.get(sentences.get(row.fact_id, -row.fact_id))
        place = None if window is None else _place_of_fact(window, row.fact_id, row.value)
        if place is not None:
            return place
    return None


# A fact that is kept as a tombstone, whose question is asked and answered by no live fact. Of those whose question has
# other punctuation only the one that the query is nearest to is compared, as comparing each takes long.
_FORGOTTEN = text(
    """
SELECT f.id FROM tombstone t JOIN fact f ON f.id = t.fact_id
WHERE (lower(f.question) = lower(:question) OR (f.id = :near AND asked_as(f.question) = asked_as(:question)))
  AND INSIDE
  AND NOT EXISTS (
      SELECT FROM fact f
      WHERE asked_as(f.question) = asked_as(:question) AND f.question IS NOT NULL AND f.deleted_seq IS NULL
        AND INSIDE
  )
ORDER BY f.id LIMIT 1
""".replace("INSIDE", INSIDE)
)
# The same as of a change. The log tells the tombstones of then, since a restore removes their rows.
_FORGOTTEN_THEN = text(
    """
SELECT f.id FROM change c JOIN fact_version v ON v.to_seq = c.seq JOIN fact f ON f.id = v.fact_id
WHERE c.seq <= :as_of AND c.payload @> '{"abstain": true}' AND lower(f.question) = lower(:question) AND INSIDE
  AND NOT EXISTS (
      SELECT FROM fact_version w WHERE w.fact_id = v.fact_id AND w.version > v.version AND w.from_seq <= :as_of
  )
  AND NOT EXISTS (
      SELECT FROM fact f JOIN fact_version v ON v.fact_id = f.id AND STANDS
      WHERE asked_as(f.question) = asked_as(:question) AND f.question IS NOT NULL AND INSIDE
  )
ORDER BY f.id LIMIT 1
""".replace("INSIDE", INSIDE).replace("STANDS", _AT)
)


def forgotten_by_question(
    session: Session,
    question: str,
    fact_filter: FactFilter,
    near: tuple[int, float] | None = None,
    *,
    as_of: int | None = None,
) -> int | None:
    """Give the id of a deleted fact with this question that makes answers abstain; None if a live one has it, too.
    What the filter leaves out of the corpora counts in neither.

    `near` is the nearest such deleted fact (a tombstone) to the query, with its cosine. With `as_of` the facts are as
    they were at that change.
    """
    asked = {"question": question, **fact_filter.parameters}
    if as_of is None:
        found: int | None = session.scalar(_FORGOTTEN, {**asked, "near": near[0] if near else None})
    else:
        found = session.scalar(_FORGOTTEN_THEN, {**asked, "as_of": as_of})
    return found


def _is_in_another_document(row: Row[Any], other: Row[Any]) -> bool:
    return None not in (row.document_id, other.document_id) and row.document_id != other.document_id


def _place_of_fact(window: SaidWindow, fact_id: int, value: str) -> ReadPlace | None:
    """Give the span of a fact as a place; None if the window cuts it, it is redacted, or a deleted fact overlaps it."""
    fact = next((one for one in window.facts if one.fact_id == fact_id), None)
    if fact is None or window.text[fact.start : fact.end] != value:
        return None
    facts = window.facts_overlapping(fact.start, fact.end)
    if MARK in value or any(one.version is None for one in facts) or fact.review != "accepted":
        return None
    candidate = CandidateSentence(window.sentence_id, 1.0, 1.0, 1.0)
    return ReadPlace(window, candidate, 0, fact.start, fact.end, math.inf, facts)
