"""Erased texts: keyed digests by which an erased text is recognised wherever something still says it.

An erasure keeps, for each text of a fact (its values, its question, its answer), an HMAC of the words under the
database's secret, one of the first word, and the number of words. So a text that is stored later can be checked for
erased ones, and fsck can check what is stored. Only where a first word matches are the following words digested
and compared, so a check costs little more than reading.

An erased text always counts in a text that names its own fact. In other texts it counts where the erasure was to
reach them (`everywhere`) and they were made before it: what people say later does not come from the fact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.facts.redaction import ErasureTarget
from colmlm.kb.facts.suppression import Digests
from colmlm.kb.tables import ErasedTextRow
from colmlm.kb.texts.wording import ComparedText, Reading, Span, forms, words_before

UNDER_WAY = timedelta(hours=1)  # an erasure may commit this long after its time is taken


@dataclass(frozen=True, slots=True)
class TextOrigin:
    """The origin of a text that is searched: the facts it names, and when it was made (after change `seq`, or `at`).

    Without either time only the texts of those facts count.
    """

    fact_ids: frozenset[int] = frozenset()
    seq: int | None = None
    at: datetime | None = None

    def counts(self, erased: ErasedTextRow) -> bool:
        """Says whether this erased text must not be said here."""
        if erased.fact_id in self.fact_ids:
            return True
        late = (self.seq is not None and erased.seq > self.seq) or (
            self.at is not None and erased.at > self.at - UNDER_WAY
        )
        return erased.everywhere and late

    def condition(self) -> ColumnElement[bool]:
        """Gives `counts` as a condition (SQL)."""
        late: list[Any] = []
        if self.seq is not None:
            late.append(ErasedTextRow.seq > self.seq)
        if self.at is not None:
            late.append(ErasedTextRow.at > self.at - UNDER_WAY)
        own = ErasedTextRow.fact_id == func.any(sorted(self.fact_ids))
        return or_(own, *(ErasedTextRow.everywhere & past for past in late))


@dataclass(frozen=True, slots=True)
class ErasedTexts:
    """Finds erased texts in a text by their digests."""

    _digests: Digests | None  # none is needed where nothing was erased
    _by_digest: dict[bytes, list[ErasedTextRow]]
    # By digest of a first word: the lengths, in words, of the texts that begin with it, longest first.
    _sizes: dict[bytes, list[int]]
    _first: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, session: Session, fact_ids: Collection[int] | None = None) -> ErasedTexts:
        """Reads the erased texts of these facts; None stands for all facts."""
        of_facts = None if fact_ids is None else ErasedTextRow.fact_id == func.any(list(fact_ids))
        return cls._read(session, of_facts)

    @classmethod
    def counting(cls, session: Session, said: TextOrigin) -> ErasedTexts:
        """Reads the erased texts that count in a text of this origin."""
        return cls._read(session, said.condition())

    @classmethod
    def _read(cls, session: Session, condition: ColumnElement[bool] | None) -> ErasedTexts:
        statement = select(ErasedTextRow)
        rows = list(session.scalars(statement if condition is None else statement.where(condition)))
        by_digest: dict[bytes, list[ErasedTextRow]] = {}
        sizes: dict[bytes, set[int]] = {}
        for row in rows:
            by_digest.setdefault(bytes(row.digest), []).append(row)
            sizes.setdefault(bytes(row.first_word), set()).add(row.num_words)
        longest_first = {first: sorted(found, reverse=True) for first, found in sizes.items()}
        return cls(Digests.of(session) if rows else None, by_digest, longest_first)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    @property
    def last(self) -> int:
        """The last change that erased one of these texts; 0 where there is none."""
        return max((erased.seq for same in self._by_digest.values() for erased in same), default=0)

    @property
    def last_everywhere(self) -> int:
        """The last change that erased one of these texts everywhere; 0 where there is none."""
        every = (erased for same in self._by_digest.values() for erased in same)
        return max((erased.seq for erased in every if erased.everywhere), default=0)

    def within(self, said: TextOrigin, met: set[int] | None = None) -> Within:
        """Gives a finder of the erased texts that count in a text of this origin; facts it finds go into `met`."""
        return Within(self, said, set() if met is None else met)

    def spans(self, text: str, said: TextOrigin, met: set[int]) -> list[Span]:
        """Finds the spans where a text of this origin says an erased text; they may overlap."""
        if self._digests is None:
            return []
        found = self._spans_in(self._digests, ComparedText.of(text), said, met)
        if (before := words_before(text)) is not None:  # as erasures by earlier releases digested it
            found += self._spans_in(self._digests, ComparedText(before, {}, {}), said, met)
            found.sort()
        return found

    def _spans_in(self, digests: Digests, text: ComparedText, said: TextOrigin, met: set[int]) -> list[Span]:
        found: list[Span] = []
        for at, word in enumerate(text.words):
            firsts = {self._digest_of_first(digests, first) for first, _ in text.steps(at)}
            sizes = {size for first in firsts for size in self._sizes.get(first, ())}
            for size in sorted(sizes, reverse=True):
                if end := self._end_of_erased(digests, text.readings(at, size), said, met):
                    found.append((word.start, text.words[end - 1].end))
                    break
        return found

    def _end_of_erased(
        self, digests: Digests, readings: Iterable[Reading], said: TextOrigin, met: set[int]
    ) -> int:
        """Give the number of the word after the longest of these readings that is an erased text, or 0."""
        last = 0
        for taken, end in readings:
            same = self._by_digest.get(digests.of_words(taken), ())
            if facts := [erased.fact_id for erased in same if said.counts(erased)]:
                met.update(facts)
                last = max(last, end)
        return last

    def _digest_of_first(self, digests: Digests, word: str) -> bytes:
        if (known := self._first.get(word)) is None:
            known = self._first[word] = digests.of_first_word(word)
        return known


@dataclass(frozen=True, slots=True)
class Within:
    """Finds erased texts in texts of one origin."""

    texts: ErasedTexts
    said: TextOrigin
    met: set[int]

    def spans(self, text: str) -> list[Span]:
        return self.texts.spans(text, self.said, self.met)


def keep_erased(
    session: Session, targets: Iterable[ErasureTarget], seq: int, standing: Collection[str]
) -> None:
    """Stores the digests of all texts of the facts that change `seq` erases; called while those texts still exist.

    A text in `standing` (by its forms) is still said on purpose elsewhere: it counts only in texts that name the fact.
    """
    digests = Digests.of(session)
    rows = []
    for target in targets:
        for said, everywhere in _forms(target.strings, standing).items():
            every = said.split(" ")
            rows.append(
                {
                    "fact_id": target.fact_id,
                    "digest": digests.of_words(every),
                    "first_word": digests.of_first_word(every[0]),
                    "num_words": len(every),
                    "seq": seq,
                    "everywhere": everywhere,
                }
            )
    if rows:
        session.execute(insert(ErasedTextRow).on_conflict_do_nothing(), rows)


def _forms(strings: Iterable[str], standing: Collection[str]) -> dict[str, bool]:
    """Give each form of these texts, and whether it counts everywhere."""
    found: dict[str, bool] = {}
    for every in map(forms, strings):
        found |= dict.fromkeys(filter(None, every), not any(said in standing for said in every))
    return found
