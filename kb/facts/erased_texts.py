"""Erased texts: what was erased, known again wherever it is still said, by keyed digests of its words.

An erasure keeps, for each text of a fact (its values, its question, its answer), an HMAC of the words under the
database's secret, one of the first word, and how many words there are. So whoever stores a text later can see that
it says an erased one, and fsck can go through what is stored: only where a first word fits are words taken together
and compared, so that it costs little more than reading.

An erased text counts in what is said of its own fact, however late that comes; elsewhere in what was said before the
erasure, where the erasure was to reach there (`everywhere`). What people say later is not the fact's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.facts.redaction import Target
from colmlm.kb.facts.suppression import Digests
from colmlm.kb.tables import ErasedText
from colmlm.kb.texts.wording import Span, Word, normalised, words

UNDER_WAY = timedelta(hours=1)  # an erasure of so long ago may have been committed since


@dataclass(frozen=True, slots=True)
class Said:
    """Where a text belongs that is looked through: to these facts, and made when the log was at `seq`, or `at` a time.

    Neither: only texts of the facts themselves count.
    """

    fact_ids: frozenset[int] = frozenset()
    seq: int | None = None
    at: datetime | None = None

    def counts(self, erased: ErasedText) -> bool:
        """Whether a text erased so is one that must not be said here."""
        if erased.fact_id in self.fact_ids:
            return True
        late = (self.seq is not None and erased.seq > self.seq) or (
            self.at is not None and erased.at > self.at - UNDER_WAY
        )
        return erased.everywhere and late

    def condition(self) -> ColumnElement[bool]:
        """The same as SQL."""
        late: list[Any] = []
        if self.seq is not None:
            late.append(ErasedText.seq > self.seq)
        if self.at is not None:
            late.append(ErasedText.at > self.at - UNDER_WAY)
        own = ErasedText.fact_id == func.any(sorted(self.fact_ids))
        return or_(own, *(ErasedText.everywhere & past for past in late))


@dataclass(frozen=True, slots=True)
class ErasedTexts:
    """The digests of some erased texts, by which they are found."""

    _digests: Digests
    _by_digest: dict[bytes, list[ErasedText]]
    _sizes: dict[
        bytes, list[int]
    ]  # by digest of the first word: how many words follow each other, most first
    _first: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, session: Session, fact_ids: Collection[int] | None = None) -> ErasedTexts:
        """Those of these facts; None: of all."""
        of_facts = None if fact_ids is None else ErasedText.fact_id == func.any(list(fact_ids))
        return cls._read(session, of_facts)

    @classmethod
    def counting(cls, session: Session, said: Said) -> ErasedTexts:
        """Those that count in a text of this kind."""
        return cls._read(session, said.condition())

    @classmethod
    def _read(cls, session: Session, condition: ColumnElement[bool] | None) -> ErasedTexts:
        statement = select(ErasedText)
        rows = list(session.scalars(statement if condition is None else statement.where(condition)))
        by_digest: dict[bytes, list[ErasedText]] = {}
        sizes: dict[bytes, set[int]] = {}
        for row in rows:
            by_digest.setdefault(bytes(row.digest), []).append(row)
            sizes.setdefault(bytes(row.first_word), set()).add(row.num_words)
        longest_first = {first: sorted(found, reverse=True) for first, found in sizes.items()}
        return cls(Digests.of(session), by_digest, longest_first)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    @property
    def last(self) -> int:
        """The last change that erased one of them; 0 where there is none."""
        return max((erased.seq for same in self._by_digest.values() for erased in same), default=0)

    @property
    def last_everywhere(self) -> int:
        """The last change that erased one of those that count everywhere."""
        every = (erased for same in self._by_digest.values() for erased in same)
        return max((erased.seq for erased in every if erased.everywhere), default=0)

    def within(self, said: Said, met: set[int] | None = None) -> Within:
        """A finder of those that count in such a text. `met` gets the facts that were found."""
        return Within(self, said, set() if met is None else met)

    def spans(self, text: str, said: Said, met: set[int]) -> list[Span]:
        """Where a text of this kind says one of them; spans may overlap."""
        if not self._by_digest:
            return []
        every = words(text)
        found: list[Span] = []
        for at, word in enumerate(every):
            for size in self._sizes.get(self._digest_of_first(word.said), ()):
                if facts := self._facts_saying(every[at : at + size], size, said):
                    met.update(facts)
                    found.append((word.start, every[at + size - 1].end))
                    break
        return found

    def _facts_saying(self, taken: Sequence[Word], size: int, said: Said) -> list[int]:
        if len(taken) < size:
            return []
        digest = self._digests.of_words(word.said for word in taken)
        return [erased.fact_id for erased in self._by_digest.get(digest, ()) if said.counts(erased)]

    def _digest_of_first(self, word: str) -> bytes:
        if (known := self._first.get(word)) is None:
            known = self._first[word] = self._digests.of_first_word(word)
        return known


@dataclass(frozen=True, slots=True)
class Within:
    """Finds erased texts in texts of one kind."""

    texts: ErasedTexts
    said: Said
    met: set[int]

    def spans(self, text: str) -> list[Span]:
        return self.texts.spans(text, self.said, self.met)


def keep(session: Session, targets: Iterable[Target], seq: int, standing: Collection[str]) -> None:
    """Keep the digests of all texts of facts that change `seq` erases, while they stand.

    Those in `standing`, given as normalised, are said elsewhere on purpose and count for the facts alone.
    """
    digests = Digests.of(session)
    rows = []
    for target in targets:
        for said in {normalised(string) for string in target.strings} - {""}:
            every = said.split(" ")
            rows.append(
                {
                    "fact_id": target.fact_id,
                    "digest": digests.of_words(every),
                    "first_word": digests.of_first_word(every[0]),
                    "num_words": len(every),
                    "seq": seq,
                    "everywhere": said not in standing,
                }
            )
    if rows:
        session.execute(insert(ErasedText).on_conflict_do_nothing(), rows)
