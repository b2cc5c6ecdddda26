"""The texts of facts that are about to be erased, or that were, as they are searched for in what quotes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.redaction import ErasureTarget
from colmlm.kb.tables import AttributionRow, FactRow, GenerationRow
from colmlm.kb.texts.wording import Finder, Phrases, Together, forms, may_say


class Sought(Protocol):
    """The texts of erased facts, searched for in stored texts. `met` collects the facts that were found."""

    met: set[int]

    @property
    def fact_ids(self) -> Collection[int]:
        """The facts whose splices are redacted."""
        ...

    def outputs(self) -> ColumnElement[bool]:
        """Gives a condition (SQL) for the outputs that may say one of the texts without a splice."""
        ...

    def finder(self, said: TextOrigin) -> Finder:
        """Gives a finder of the texts that count in a text of this origin."""
        ...

    def is_part(self, words: str, said: TextOrigin) -> bool:
        """Says whether these words are a part of what a fact named by this origin said."""
        ...


class StandingTexts:
    """Facts that are about to be erased, whose texts still exist.

    `wide` are the texts that count everywhere, and not only in texts that name their fact.
    """

    def __init__(self, targets: Sequence[ErasureTarget], wide: Collection[str]) -> None:
        self.targets, self.wide = targets, wide
        self.met: set[int] = set()
        self._everywhere = Phrases(wide)

    @classmethod
    def of(cls, targets: Sequence[ErasureTarget], standing: Collection[str]) -> StandingTexts:
        """Takes every text of the facts as wide, except those with a form in `standing`, which other facts say too."""
        texts = {string for target in targets for string in target.strings}
        return cls(targets, [text for text in texts if not any(form in standing for form in forms(text))])

    @property
    def fact_ids(self) -> Collection[int]:
        return {target.fact_id for target in self.targets}

    def outputs(self) -> ColumnElement[bool]:
        return or_(may_say(GenerationRow.prompt, self.wide), may_say(GenerationRow.output, self.wide))

    def finder(self, said: TextOrigin) -> Finder:
        own = [target for target in self.targets if target.fact_id in said.fact_ids]
        if not own:
            return self._everywhere
        return Together(Phrases(string for target in own for string in target.strings), self._everywhere)

    def is_part(self, words: str, said: TextOrigin) -> bool:
        own = (target.strings for target in self.targets if target.fact_id in said.fact_ids)
        whole = [form for strings in own for string in strings for form in forms(string)]
        return any(part in form for part in forms(words) if part for form in whole)


class Gone:
    """Facts that were erased, recognised by digests of their texts and by splices that are not redacted."""

    def __init__(self, texts: ErasedTexts, fact_ids: Collection[int]) -> None:
        self.texts, self._spliced = texts, fact_ids
        self.met: set[int] = set()  # the erased facts that were found

    @property
    def fact_ids(self) -> Collection[int]:
        return self._spliced

    @classmethod
    def read(cls, session: Session, fact_ids: Collection[int] | None = None) -> Gone:
        """Reads all erased facts, or those among these ids."""
        spliced = (
            select(AttributionRow.fact_id).join(FactRow, FactRow.id == AttributionRow.fact_id).distinct()
        )
        spliced = spliced.where(FactRow.erased_seq.is_not(None))
        if fact_ids is not None:
            spliced = spliced.where(FactRow.id == func.any(list(fact_ids)))
        return cls(ErasedTexts.read(session, fact_ids), frozenset(session.scalars(spliced)))

    def outputs(self) -> ColumnElement[bool]:
        return GenerationRow.seq < self.texts.last_everywhere

    def finder(self, said: TextOrigin) -> Finder:
        return self.texts.within(said, self.met)

    def is_part(self, words: str, said: TextOrigin) -> bool:
        return False
