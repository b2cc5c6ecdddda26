"""Facts: added, mended, deleted, restored and found. Each edit is one transaction and one change of the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.facts import edits, mending, reading, search, undoing
from colmlm.kb.facts.records import (
    Contradicting,
    Correcting,
    Correction,
    Edit,
    FactDraft,
    FactPage,
    FactRecord,
    FactSearch,
    FactsSought,
    MarkedAddition,
    Marking,
    Moving,
)
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store

PAGE = 1000  # facts that are read at once where all are


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a store."""

    store: Store

    def add(
        self,
        question: str,
        value: str,
        *,
        answer: str | None = None,
        proposed: bool = False,
        **how: Unpack[Contradicting],
    ) -> Edit:
        """Adds a fact without a document. Lookups find it once a rekey has made a key for it.

        Raises `FactSuppressed` where this question and value were erased, unless `allow_erased`, and
        `AnsweredAlready` where another fact answers the question otherwise, unless `anyway`.
        """
        return self.add_many([FactDraft(question, value, answer, proposed)], **how)

    @tried_again
    def add_many(self, drafts: Sequence[FactDraft], **how: Unpack[Contradicting]) -> Edit:
        """Adds these facts in one change, all or none. Raises as `add` does."""
        _require_some(len(drafts))
        with self.store.sessions.begin() as session:
            return edits.insert_facts(session, drafts, **how)

    @tried_again
    def add_to(self, document_id: int, span: Marking, **how: Unpack[MarkedAddition]) -> Edit:
        """Adds a fact to a document, whose words at this span are its value. Lookups find it once a rekey has keyed it.

        Raises `DocumentNotFound`, `DocumentReplaced`, `InvalidSpan`, `SpanTaken`, or what `add` raises.
        """
        with self.store.sessions.begin() as session:
            return mending.mark(session, document_id, span, **how)

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        question: str | None = None,
        version: int | None = None,
        **how: Unpack[Correcting],
    ) -> Edit:
        """Gives a fact another value, another question, or both.

        From the commit on every process answers with the value, and no longer by the question before. Where the
        question changed, the next rekey makes its keys. Raises `FactChanged` where it has not this `version` any more.
        """
        return self.edit_many([Correction(fact_id, value, question, version)], **how)

    @tried_again
    def edit_many(self, corrections: Sequence[Correction], **how: Unpack[Correcting]) -> Edit:
        """Edits each of these facts, in one change.

        Raises `FactNotFound`, `FactDeleted`, `FactErased` or `FactChanged`, and `AnsweredAlready` where that makes a
        contradiction, unless `anyway`.
        """
        _require_some(len(corrections))
        with self.store.edits.begin() as session:
            return mending.correct(session, corrections, **how)

    @tried_again
    def move(self, fact_id: int, span: Marking, **how: Unpack[Moving]) -> Edit:
        """Moves the span of a fact within its document, whose words there become its value.

        Raises what `add_to` and `edit` raise.
        """
        with self.store.sessions.begin() as session:
            return mending.move(session, fact_id, span, **how)

    @tried_again
    def undo(self, seq: int, *, actor: str, reason: str) -> Edit:
        """Undoes the edit of facts that is change `seq`, all of it or nothing.

        Raises `NoSuchChange`, or `NotUndoable` where one of its facts was edited since, or it is no such edit.
        """
        with self.store.edits.begin() as session:
            return undoing.undo(session, seq, actor, reason)

    @tried_again
    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit:
        """Deletes facts, all or none; from the commit on no process answers with them.

        With `abstain` a query that points at one of them gets no match instead of the runner-up.
        """
        with self.store.edits.begin() as session:
            return edits.delete_facts(session, fact_ids, actor, reason, abstain=abstain)

    @tried_again
    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        """Undoes the delete or the rejection of facts, all or none; each has the review again that it had."""
        with self.store.edits.begin() as session:
            return edits.restore_facts(session, fact_ids, actor, reason)

    def show(self, fact_id: int) -> FactRecord:
        """Gives one fact, live or deleted. Raises `FactNotFound`."""
        with self.store.sessions() as session:
            return reading.get_fact(session, fact_id)

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]:
        """Gives these facts in the given order. Raises `FactNotFound`, which names all missing ones."""
        with self.store.sessions() as session:
            found = reading.fact_records(session, fact_ids)
        if missing := [fact_id for fact_id in fact_ids if fact_id not in found]:
            raise FactNotFound(missing)
        return [found[fact_id] for fact_id in fact_ids]

    def ids_of(self, corpus: str, external_ids: Sequence[str]) -> list[int]:
        """Gives the facts of the current documents of these external ids, also deleted ones."""
        with self.store.sessions() as session:
            return reading.ids_of_sources(session, corpus, external_ids)

    def find(self, **sought: Unpack[FactsSought]) -> list[FactRecord]:
        """Finds facts, by id, by what value or question say literally."""
        with self.store.sessions() as session:
            return reading.list_facts(session, **sought)

    def search(
        self, *, nearest: Sequence[int] | None = None, past: bool = True, **sought: Unpack[FactSearch]
    ) -> FactPage:
        """Searches facts by a text in their values, questions, titles and sentences, and counts them.

        With `nearest`, ids in the order to give, those of them are given that fit; a lookup finds them by meaning.
        Without `past` nothing is found by words of a text whose fact says them no more.
        """
        with self.store.sessions() as session:
            return search.search(session, nearest=nearest, past=past, **sought)

    def every_of(self, document_id: int) -> list[FactRecord]:
        """Finds all facts of a document, also deleted ones, by id."""
        found: list[FactRecord] = []
        while page := self.find(
            document_id=document_id, deleted=None, after=found[-1].fact_id if found else 0, limit=PAGE
        ):
            found += page
        return found

    def every(self, corpus: str | None = None) -> Iterator[FactRecord]:
        """Finds all live facts by id, a page in each transaction. Raises `CorpusNotFound`."""
        after = 0
        while page := self.find(corpus=corpus, after=after, limit=PAGE):
            yield from page
            after = page[-1].fact_id


def _require_some(count: int) -> None:
    if not count:
        raise InvalidValue("batch", "it holds no fact")
